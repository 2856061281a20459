/* nst_status.c - the texts of status codes, apart so that firmware without logs does not carry them. */
#include "nst.h"

const char *nst_status_text(nst_status status) {
    switch (status) {
#define NST_STATUS_CASE(name, text) \
    case NST_##name:                \
        return text;
        NST_STATUS_LIST(NST_STATUS_CASE)
#undef NST_STATUS_CASE
    case NST_STATUS_COUNT:
        break;
    }
    return "unknown status";
}
