/* nst_rpc_messages.h - kinds, status codes and layouts of the serial protocol.
 *
 * Printed by `python -m toolkit.measure.rpc.messages`, the source; do not edit.
 * NST_RPC_<MESSAGE>_<FIELD> is the field's byte in the payload, NST_RPC_<MESSAGE>_BYTES
 * the size of the fixed fields; a tail of bytes follows.  All numbers are little-endian.
 */
#ifndef NST_RPC_MESSAGES_H
#define NST_RPC_MESSAGES_H

#define NST_RPC_VERSION 3u
#define NST_RPC_REPLY 0x80u
#define NST_RPC_REGION_ARENA 0u
#define NST_RPC_REGION_WRITABLE 1u
#define NST_RPC_REGION_EXECUTABLE 2u
#define NST_RPC_FEATURE_LOAD 1u
#define NST_RPC_FEATURE_BEAT 2u
#define NST_RPC_NO_MODEL 0xFFFFFFFFu
#define NST_RPC_PERMUTE_RANK 8u

/* Command */
#define NST_RPC_CMD_PING 1u
#define NST_RPC_CMD_INFO 2u
#define NST_RPC_CMD_TENSOR 3u
#define NST_RPC_CMD_WRITE 4u
#define NST_RPC_CMD_READ 5u
#define NST_RPC_CMD_CRC 6u
#define NST_RPC_CMD_RUN 7u
#define NST_RPC_CMD_STATS 8u
#define NST_RPC_CMD_FAULT 9u
#define NST_RPC_CMD_RESET 10u
#define NST_RPC_CMD_REGION 16u
#define NST_RPC_CMD_LOAD 17u
#define NST_RPC_CMD_CALL 18u
#define NST_RPC_CMD_FILL 19u
#define NST_RPC_CMD_PERMUTE 20u

/* Event */
#define NST_RPC_EVENT_BOOT 192u
#define NST_RPC_EVENT_ALIVE 193u
#define NST_RPC_EVENT_NODE 194u

/* RpcStatus */
#define NST_RPC_STATUS_OK 0u
#define NST_RPC_STATUS_BAD_COMMAND 1u
#define NST_RPC_STATUS_BAD_LENGTH 2u
#define NST_RPC_STATUS_BAD_REGION 3u
#define NST_RPC_STATUS_BAD_RANGE 4u
#define NST_RPC_STATUS_BAD_INDEX 5u
#define NST_RPC_STATUS_BAD_SESSION 6u
#define NST_RPC_STATUS_NOT_LOADED 8u
#define NST_RPC_STATUS_BAD_CRC 9u
#define NST_RPC_STATUS_BAD_KIND 10u

/* FaultKind */
#define NST_RPC_FAULT_NONE 0u
#define NST_RPC_FAULT_EXCEPTION 1u
#define NST_RPC_FAULT_STACK 2u
#define NST_RPC_FAULT_LIMIT 3u
#define NST_RPC_FAULT_INTERRUPT 4u

/* FillKind */
#define NST_RPC_FILL_INT8 1u
#define NST_RPC_FILL_INT16 2u
#define NST_RPC_FILL_INT32 4u
#define NST_RPC_FILL_FLOAT32 5u
#define NST_RPC_FILL_FLOAT32_POSITIVE 6u

/* Unit */
#define NST_RPC_UNIT_SECONDS 0u
#define NST_RPC_UNIT_CYCLES 1u
#define NST_RPC_UNIT_INSTRUCTIONS 2u

/* PingRequest: Synchronise; `session` is a fresh number that is not 0.  Goes over channel 0. */
#define NST_RPC_PING_REQUEST_SESSION 0u
#define NST_RPC_PING_REQUEST_BYTES 4u

/* PingReply: The session echoed, and the channel of its frames. */
#define NST_RPC_PING_REPLY_STATUS 0u
#define NST_RPC_PING_REPLY_VERSION 1u
#define NST_RPC_PING_REPLY_SESSION 3u
#define NST_RPC_PING_REPLY_CHANNEL 7u
#define NST_RPC_PING_REPLY_BYTES 8u

/* InfoRequest: Ask what the board runs. */
#define NST_RPC_INFO_REQUEST_BYTES 0u

/* InfoReply: The model and the clock. */
#define NST_RPC_INFO_REPLY_STATUS 0u
#define NST_RPC_INFO_REPLY_VERSION 1u
#define NST_RPC_INFO_REPLY_MODEL_DIGEST 3u
#define NST_RPC_INFO_REPLY_ARENA_BYTES 7u
#define NST_RPC_INFO_REPLY_NODE_COUNT 11u
#define NST_RPC_INFO_REPLY_INPUT_COUNT 15u
#define NST_RPC_INFO_REPLY_OUTPUT_COUNT 17u
#define NST_RPC_INFO_REPLY_BUFFER_BYTES 19u
#define NST_RPC_INFO_REPLY_REGION_COUNT 21u
#define NST_RPC_INFO_REPLY_UNIT 22u
#define NST_RPC_INFO_REPLY_CLOCK_HZ 23u
#define NST_RPC_INFO_REPLY_EMPTY_START 27u
#define NST_RPC_INFO_REPLY_EMPTY_STOP 31u
#define NST_RPC_INFO_REPLY_FEATURES 35u
#define NST_RPC_INFO_REPLY_BYTES 36u

/* TensorRequest: Ask where input (`output` 0) or output (`output` 1) number `index` lies in the arena. */
#define NST_RPC_TENSOR_REQUEST_OUTPUT 0u
#define NST_RPC_TENSOR_REQUEST_INDEX 1u
#define NST_RPC_TENSOR_REQUEST_BYTES 3u

/* TensorReply: Place, size and `nst_dtype` of a tensor. */
#define NST_RPC_TENSOR_REPLY_STATUS 0u
#define NST_RPC_TENSOR_REPLY_OFFSET 1u
#define NST_RPC_TENSOR_REPLY_NBYTES 5u
#define NST_RPC_TENSOR_REPLY_DTYPE 9u
#define NST_RPC_TENSOR_REPLY_BYTES 11u

/* WriteRequest: Write `data` at byte `offset` of a memory region. */
#define NST_RPC_WRITE_REQUEST_REGION 0u
#define NST_RPC_WRITE_REQUEST_OFFSET 1u
#define NST_RPC_WRITE_REQUEST_DATA 5u
#define NST_RPC_WRITE_REQUEST_BYTES 5u

/* ReadRequest: Read `count` bytes at byte `offset` of a memory region. */
#define NST_RPC_READ_REQUEST_REGION 0u
#define NST_RPC_READ_REQUEST_OFFSET 1u
#define NST_RPC_READ_REQUEST_COUNT 5u
#define NST_RPC_READ_REQUEST_BYTES 9u

/* ReadReply: The bytes; none unless the status is OK. */
#define NST_RPC_READ_REPLY_STATUS 0u
#define NST_RPC_READ_REPLY_DATA 1u
#define NST_RPC_READ_REPLY_BYTES 1u

/* CrcRequest: Ask for the CRC-32 of `count` bytes at byte `offset` of a memory region. */
#define NST_RPC_CRC_REQUEST_REGION 0u
#define NST_RPC_CRC_REQUEST_OFFSET 1u
#define NST_RPC_CRC_REQUEST_COUNT 5u
#define NST_RPC_CRC_REQUEST_BYTES 9u

/* CrcReply: The CRC-32 (zlib's). */
#define NST_RPC_CRC_REPLY_STATUS 0u
#define NST_RPC_CRC_REPLY_CRC 1u
#define NST_RPC_CRC_REPLY_BYTES 5u

/* RunRequest: Run the model once. */
#define NST_RPC_RUN_REQUEST_LIMIT_MS 0u
#define NST_RPC_RUN_REQUEST_BEAT_MS 4u
#define NST_RPC_RUN_REQUEST_PART 8u
#define NST_RPC_RUN_REQUEST_BYTES 8u

/* RunPart: Tail of RUN: run from node `first` until the next one is `stop` or one behind it. */
#define NST_RPC_RUN_PART_FIRST 0u
#define NST_RPC_RUN_PART_STOP 4u
#define NST_RPC_RUN_PART_BYTES 8u

/* RunReply: Reply of RUN and CALL: what the model or the function returned, the clock before and after, */
#define NST_RPC_RUN_REPLY_STATUS 0u
#define NST_RPC_RUN_REPLY_RESULT 1u
#define NST_RPC_RUN_REPLY_STACK_BYTES 5u
#define NST_RPC_RUN_REPLY_NODE_EVENTS 9u
#define NST_RPC_RUN_REPLY_NODE 13u
#define NST_RPC_RUN_REPLY_START 17u
#define NST_RPC_RUN_REPLY_STOP 25u
#define NST_RPC_RUN_REPLY_BYTES 33u

/* StatsRequest: Ask for the server's counters. */
#define NST_RPC_STATS_REQUEST_BYTES 0u

/* StatsReply: Stack of the last run, frames taken and dropped since the start, bytes lost before them. */
#define NST_RPC_STATS_REPLY_STATUS 0u
#define NST_RPC_STATS_REPLY_STACK_BYTES 1u
#define NST_RPC_STATS_REPLY_FRAMES 5u
#define NST_RPC_STATS_REPLY_BAD_FRAMES 9u
#define NST_RPC_STATS_REPLY_LOST_BYTES 13u
#define NST_RPC_STATS_REPLY_BYTES 17u

/* FaultRequest: Ask why the board restarted last; `clear` 1 forgets it. */
#define NST_RPC_FAULT_REQUEST_CLEAR 0u
#define NST_RPC_FAULT_REQUEST_BYTES 1u

/* FaultReply: A `FaultKind` and, for exceptions of a Cortex-M, its registers. */
#define NST_RPC_FAULT_REPLY_STATUS 0u
#define NST_RPC_FAULT_REPLY_KIND 1u
#define NST_RPC_FAULT_REPLY_PC 2u
#define NST_RPC_FAULT_REPLY_LR 6u
#define NST_RPC_FAULT_REPLY_SP 10u
#define NST_RPC_FAULT_REPLY_CAUSE 14u
#define NST_RPC_FAULT_REPLY_ADDRESS 18u
#define NST_RPC_FAULT_REPLY_BYTES 22u

/* ResetRequest: Restart the board, after the reply. */
#define NST_RPC_RESET_REQUEST_BYTES 0u

/* RegionRequest: Ask where a memory region lies. */
#define NST_RPC_REGION_REQUEST_REGION 0u
#define NST_RPC_REGION_REQUEST_BYTES 1u

/* RegionReply: Its address, its size, and REGION_* flags. */
#define NST_RPC_REGION_REPLY_STATUS 0u
#define NST_RPC_REGION_REPLY_ADDRESS 1u
#define NST_RPC_REGION_REPLY_NBYTES 5u
#define NST_RPC_REGION_REPLY_FLAGS 9u
#define NST_RPC_REGION_REPLY_BYTES 10u

/* LoadRequest: Make what was written to a range callable code, when its CRC-32 is `crc`. */
#define NST_RPC_LOAD_REQUEST_REGION 0u
#define NST_RPC_LOAD_REQUEST_OFFSET 1u
#define NST_RPC_LOAD_REQUEST_COUNT 5u
#define NST_RPC_LOAD_REQUEST_CRC 9u
#define NST_RPC_LOAD_REQUEST_MODEL 13u
#define NST_RPC_LOAD_REQUEST_RUN 17u
#define NST_RPC_LOAD_REQUEST_BYTES 21u

/* CallRequest: Call `uint32_t function(void *argument, uint64_t (*clock)(void))` in what was loaded. */
#define NST_RPC_CALL_REQUEST_ENTRY 0u
#define NST_RPC_CALL_REQUEST_ARGUMENT_REGION 4u
#define NST_RPC_CALL_REQUEST_ARGUMENT 5u
#define NST_RPC_CALL_REQUEST_LIMIT_MS 9u
#define NST_RPC_CALL_REQUEST_BEAT_MS 13u
#define NST_RPC_CALL_REQUEST_BYTES 17u

/* FillRequest: Fill `count` elements at byte `offset` with words `first`... of a seed (see `pattern`). */
#define NST_RPC_FILL_REQUEST_REGION 0u
#define NST_RPC_FILL_REQUEST_OFFSET 1u
#define NST_RPC_FILL_REQUEST_COUNT 5u
#define NST_RPC_FILL_REQUEST_KIND 9u
#define NST_RPC_FILL_REQUEST_SEED 10u
#define NST_RPC_FILL_REQUEST_FIRST 14u
#define NST_RPC_FILL_REQUEST_LOW 18u
#define NST_RPC_FILL_REQUEST_SPAN 22u
#define NST_RPC_FILL_REQUEST_BYTES 26u

/* PermuteRequest: Copy elements of `element_bytes` (1, 2, 4 or 8) in loops that are not regular in memory. */
#define NST_RPC_PERMUTE_REQUEST_REGION 0u
#define NST_RPC_PERMUTE_REQUEST_OFFSET 1u
#define NST_RPC_PERMUTE_REQUEST_SOURCE_REGION 5u
#define NST_RPC_PERMUTE_REQUEST_SOURCE_OFFSET 6u
#define NST_RPC_PERMUTE_REQUEST_ELEMENT_BYTES 10u
#define NST_RPC_PERMUTE_REQUEST_LOOPS 11u
#define NST_RPC_PERMUTE_REQUEST_BYTES 11u

/* StatusReply: Reply of WRITE, RESET, LOAD, FILL and PERMUTE, and of every refused request. */
#define NST_RPC_STATUS_REPLY_STATUS 0u
#define NST_RPC_STATUS_REPLY_BYTES 1u

/* BootEvent: The board has started; `kind` is the `FaultKind` that ended the program before. */
#define NST_RPC_BOOT_EVENT_VERSION 0u
#define NST_RPC_BOOT_EVENT_KIND 2u
#define NST_RPC_BOOT_EVENT_BYTES 3u

/* AliveEvent: RUN or CALL was taken and is at work; the frame has its sequence number. */
#define NST_RPC_ALIVE_EVENT_BYTES 0u

/* NodeEvent: Clock before and after one kernel; the frame has RUN's sequence number. */
#define NST_RPC_NODE_EVENT_NODE 0u
#define NST_RPC_NODE_EVENT_START 4u
#define NST_RPC_NODE_EVENT_STOP 12u
#define NST_RPC_NODE_EVENT_BYTES 20u

#endif /* NST_RPC_MESSAGES_H */
