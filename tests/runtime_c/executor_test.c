/* executor_test.c - tests of nst.c on hand-written tables: `executor_test NAME` runs one and returns 0, or
 * prints the line that failed and returns 1. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "nst.h"

#define CHECK(condition)                                            \
    do {                                                            \
        if (!(condition)) {                                         \
            (void)printf("line %d: %s\n", __LINE__, #condition);    \
            return 1;                                               \
        }                                                           \
    } while (0)

/* ---- kernels on int32 scalars: output first ---- */

static void k_add(uint8_t *arena, const nst_operand *o, const void *const *consts) {
    *(int32_t *)nst_dst(arena, o[0]) = *(const int32_t *)nst_src(arena, o[1], consts) +
                                       *(const int32_t *)nst_src(arena, o[2], consts);
}

static void k_positive(uint8_t *arena, const nst_operand *o, const void *const *consts) {
    *(uint8_t *)nst_dst(arena, o[0]) = *(const int32_t *)nst_src(arena, o[1], consts) > 0 ? 1u : 0u;
}

static const int32_t minus_one = -1, minus_ten = -10, hundred = 100;
static const uint8_t no = 0u, yes = 1u;
static const void *const consts[] = {&minus_one, &minus_ten, &hundred, &no, &yes};
#define C(i) (NST_CONST | (i))

/* Arena: x at 0, i at 4, sum at 8, flag at 12.
 * sum = 0 + x; do { sum += i; i -= 1; } while (i > 0); if (sum > 0) sum += 100; else sum += -10; */
static const nst_operand loop_operands[] = {
    7,  7, 7,         /* not used */
    8,  0, 12,        /* 3: sum = x + flag word (0) */
    8,  8, 4,         /* 6: sum += i */
    4,  4, C(0),      /* 9: i -= 1 */
    12, 4,            /* 12: flag = i > 0 */
    12, 6,            /* 14: if not flag go to 6 */
    1,                /* 16: go to 1 */
    12, 8,            /* 17: flag = sum > 0 */
    12, 10,           /* 19: if not flag go to 10 */
    8,  8, C(2),      /* 21: sum += 100 */
    11,               /* 24: go to 11: the end */
    8,  8, C(1),      /* 25: sum += -10 */
};
static const nst_node loop_nodes[] = {
    {k_add, 3, 3, 1, NST_FLOW_CALL},         /* 0 */
    {k_add, 6, 3, 1, NST_FLOW_CALL},         /* 1 */
    {k_add, 9, 3, 1, NST_FLOW_CALL},         /* 2 */
    {k_positive, 12, 2, 1, NST_FLOW_CALL},   /* 3 */
    {NULL, 14, 2, 0, NST_FLOW_JUMP_IF_NOT},  /* 4 */
    {NULL, 16, 1, 0, NST_FLOW_JUMP},         /* 5 */
    {k_positive, 17, 2, 1, NST_FLOW_CALL},   /* 6 */
    {NULL, 19, 2, 0, NST_FLOW_JUMP_IF_NOT},  /* 7 */
    {k_add, 21, 3, 1, NST_FLOW_CALL},        /* 8 */
    {NULL, 24, 1, 0, NST_FLOW_JUMP},         /* 9 */
    {k_add, 25, 3, 1, NST_FLOW_CALL},        /* 10 */
};
static const int32_t one_dim[] = {1};
static const nst_tensor loop_inputs[] = {{0, 4, one_dim, 1, NST_INT32},
                                         {4, 4, one_dim, 1, NST_INT32},
                                         {12, 4, NULL, 0, NST_INT32}};
static const nst_tensor loop_outputs[] = {{8, 4, one_dim, 1, NST_INT32}};
static const nst_model loop_model = {loop_nodes, loop_operands, consts, loop_inputs, loop_outputs,
                                     11, 28, 5, 3, 1, 16, 0};

/* A second model: y (at 4) = x (at 0) + -10. */
static const nst_operand small_operands[] = {4, 0, C(1)};
static const nst_node small_nodes[] = {{k_add, 0, 3, 1, NST_FLOW_CALL}};
static const nst_tensor small_inputs[] = {{0, 4, one_dim, 1, NST_INT32}};
static const nst_tensor small_outputs[] = {{4, 4, one_dim, 1, NST_INT32}};
static const nst_model small_model = {small_nodes, small_operands, consts, small_inputs, small_outputs,
                                      1, 3, 5, 1, 1, 8, 0};

/* A third model: y (at 12) = a + b, where two lanes of a fork make a (at 4) = x - 1 - 10 and b (at 8) = x + 100. */
static const nst_operand fork_operands[] = {2, 1, 4, 0, C(0), 4, 4, C(1), 8, 0, C(2), 12, 4, 8};
static const nst_node fork_nodes[] = {
    {NULL, 0, 2, 0, NST_FLOW_FORK},   {k_add, 2, 3, 1, NST_FLOW_CALL}, {k_add, 5, 3, 1, NST_FLOW_CALL},
    {k_add, 8, 3, 1, NST_FLOW_CALL}, {k_add, 11, 3, 1, NST_FLOW_CALL},
};
static const nst_tensor fork_outputs[] = {{12, 4, one_dim, 1, NST_INT32}};
static const nst_model fork_model = {fork_nodes, fork_operands, consts, small_inputs, fork_outputs,
                                     5, 14, 5, 1, 1, 16, 0};

typedef struct arena {
    NST_ALIGNED(NST_ARENA_ALIGN) uint8_t bytes[NST_ARENA_ALIGN * 2];
} arena;

static void set_loop(arena *a, int32_t x, int32_t i) {
    *(int32_t *)nst_input(&loop_model, a->bytes, 0) = x;
    *(int32_t *)nst_input(&loop_model, a->bytes, 1) = i;
    *(int32_t *)nst_input(&loop_model, a->bytes, 2) = 0;
}

static int32_t get_loop(const arena *a) {
    return *(const int32_t *)nst_output(&loop_model, a->bytes, 0);
}

static int32_t expect_loop(int32_t x, int32_t i) {
    int32_t sum = x;
    do {
        sum += i--;
    } while (i > 0);
    return sum > 0 ? sum + 100 : sum - 10;
}

/* ---- the tests ---- */

static int test_calls(void) {
    arena a;
    *(int32_t *)nst_input(&small_model, a.bytes, 0) = 42;
    CHECK(nst_run(&small_model, a.bytes) == NST_OK);
    CHECK(*(const int32_t *)nst_output(&small_model, a.bytes, 0) == 32);
    return 0;
}

static int test_jumps(void) {
    arena a;
    int32_t x;
    int32_t i;
    for (x = -60; x <= 60; x += 5) {
        for (i = 0; i < 12; i++) {
            set_loop(&a, x, i);
            CHECK(nst_run(&loop_model, a.bytes) == NST_OK);
            CHECK(get_loop(&a) == expect_loop(x, i));
        }
    }
    return 0;
}

static int test_condition_may_be_a_constant(void) {
    static const nst_operand operands[] = {C(3), 2, 4, 0, C(1), C(4), 4, 4, 0, C(2)};
    static const nst_node nodes[] = {{NULL, 0, 2, 0, NST_FLOW_JUMP_IF_NOT},
                                     {k_add, 2, 3, 1, NST_FLOW_CALL},
                                     {NULL, 5, 2, 0, NST_FLOW_JUMP_IF_NOT},
                                     {k_add, 7, 3, 1, NST_FLOW_CALL}};
    const nst_model model = {nodes, operands, consts, small_inputs, small_outputs, 4, 10, 5, 1, 1, 8, 0};
    arena a;
    *(int32_t *)nst_input(&model, a.bytes, 0) = 1;
    CHECK(nst_run(&model, a.bytes) == NST_OK);
    CHECK(*(const int32_t *)nst_output(&model, a.bytes, 0) == 101);
    return 0;
}

static int test_step_by_step(void) {
    static const uint32_t order[] = {1, 2, 3, 4, 5, 1, 2, 3, 4, 6, 7, 8, 9};
    arena a;
    uint32_t node = 0;
    size_t n;
    set_loop(&a, 3, 2);
    for (n = 0; n < sizeof order / sizeof order[0]; n++) {
        CHECK(nst_step(&loop_model, a.bytes, &node) == NST_OK);
        CHECK(node == order[n]);
    }
    CHECK(nst_step(&loop_model, a.bytes, &node) == NST_DONE);
    CHECK(node == loop_model.node_count);
    CHECK(nst_step(&loop_model, a.bytes, &node) == NST_DONE);
    CHECK(get_loop(&a) == expect_loop(3, 2));
    return 0;
}

typedef struct trace {
    uint32_t count;
    uint32_t nodes[64];
    int afters[64];
} trace;

static void on_node(void *user, uint32_t node, int after) {
    trace *const t = (trace *)user;
    if (t->count < 64u) {
        t->nodes[t->count] = node;
        t->afters[t->count] = after;
    }
    t->count++;
}

static int test_hook(void) {
    static const uint32_t called[] = {0, 1, 2, 3, 1, 2, 3, 6, 8}; /* jumps are not reported */
    arena a;
    trace t;
    uint32_t n;
    (void)memset(&t, 0, sizeof t);
    set_loop(&a, 3, 2);
    CHECK(nst_run_hooked(&loop_model, a.bytes, on_node, &t) == NST_OK);
    CHECK(t.count == 2u * 9u);
    for (n = 0; n < 9u; n++) {
        CHECK(t.nodes[2 * n] == called[n] && t.afters[2 * n] == 0);
        CHECK(t.nodes[2 * n + 1] == called[n] && t.afters[2 * n + 1] == 1);
    }
    CHECK(get_loop(&a) == expect_loop(3, 2));
    /* The same in single steps. */
    {
        trace steps;
        uint32_t node = 0;
        (void)memset(&steps, 0, sizeof steps);
        set_loop(&a, 3, 2);
        while (nst_step_hooked(&loop_model, a.bytes, &node, on_node, &steps) == NST_OK) {
        }
        CHECK(memcmp(&steps, &t, sizeof t) == 0);
        CHECK(get_loop(&a) == expect_loop(3, 2));
    }
    return 0;
}

static int test_fork(void) {
    static const uint32_t called[] = {1, 2, 3, 4};
    arena a;
    trace t;
    uint32_t n;
    int32_t x;
    for (x = -500; x <= 500; x++) {
        *(int32_t *)nst_input(&fork_model, a.bytes, 0) = x;
        CHECK(nst_run(&fork_model, a.bytes) == NST_OK);
        CHECK(*(const int32_t *)nst_output(&fork_model, a.bytes, 0) == 2 * x + 89);
    }
    /* Step by step, and between calls of a hook, the calls run in order. */
    *(int32_t *)nst_input(&fork_model, a.bytes, 0) = 7;
    for (n = 0; n < 4u;) {
        CHECK(nst_step(&fork_model, a.bytes, &n) == NST_OK);
    }
    CHECK(nst_step(&fork_model, a.bytes, &n) == NST_DONE);
    CHECK(*(const int32_t *)nst_output(&fork_model, a.bytes, 0) == 2 * 7 + 89);
    (void)memset(&t, 0, sizeof t);
    *(int32_t *)nst_input(&fork_model, a.bytes, 0) = 8;
    CHECK(nst_run_hooked(&fork_model, a.bytes, on_node, &t) == NST_OK);
    CHECK(*(const int32_t *)nst_output(&fork_model, a.bytes, 0) == 2 * 8 + 89);
    CHECK(t.count == 8u);
    for (n = 0; n < 4u; n++) {
        CHECK(t.nodes[2 * n] == called[n]);
    }
    return 0;
}

/* The last nodes of a model may be a fork's. */
static int test_fork_at_the_end(void) {
    const nst_model model = {fork_nodes, fork_operands, consts, small_inputs, fork_outputs,
                             4, 14, 5, 1, 1, 16, 0};
    arena a;
    *(int32_t *)nst_input(&model, a.bytes, 0) = 1;
    CHECK(nst_run(&model, a.bytes) == NST_OK);
    CHECK(*(const int32_t *)(const void *)(a.bytes + 4) == -10);
    CHECK(*(const int32_t *)(const void *)(a.bytes + 8) == 101);
    return 0;
}

/* Whether lanes run side by side or in order, a damaged table ends in a status. */
static int test_malformed_forks(void) {
    static const nst_operand operands[] = {2, 1, 4, 0, C(0), 4, 4, C(1), 8, 0, C(2), 12, 4, 8, 0xffffffffu};
    static const struct {
        uint32_t row;
        nst_node node;
    } bad[] = {
        {0, {NULL, 14, 2, 0, NST_FLOW_FORK}},  /* operands past the end */
        {0, {NULL, 99, 1, 0, NST_FLOW_FORK}},  /* first operand past the end */
        {1, {NULL, 2, 3, 1, NST_FLOW_CALL}},   /* a call without a kernel */
        {3, {k_add, 13, 3, 1, NST_FLOW_CALL}}, /* a call with operands past the end */
#if NST_PARALLEL != NST_PARALLEL_NONE          /* else they are passed over */
        {0, {NULL, 0, 0, 0, NST_FLOW_FORK}},  /* no lanes */
        {0, {NULL, 2, 1, 0, NST_FLOW_FORK}},  /* a jump follows among its calls, see below */
        {0, {NULL, 13, 1, 0, NST_FLOW_FORK}}, /* more nodes than there are */
        {0, {NULL, 13, 2, 0, NST_FLOW_FORK}}, /* so many that their sum wraps */
#endif
    };
    nst_node nodes[6];
    arena a;
    size_t n;
    for (n = 0; n < sizeof bad / sizeof bad[0]; n++) {
        const nst_model model = {nodes, operands, consts, small_inputs, fork_outputs, 6, 15, 5, 1, 1, 16, 0};
        (void)memcpy(nodes, fork_nodes, sizeof fork_nodes);
        nodes[4].flow = NST_FLOW_JUMP; /* to node operands[11]: 12 of 6 */
        nodes[5] = fork_nodes[4];
        nodes[bad[n].row] = bad[n].node;
        (void)memset(a.bytes, 0, sizeof a.bytes);
        CHECK(nst_run(&model, a.bytes) == NST_ERR_NODE);
    }
    return 0;
}

static int test_two_instances(void) {
    arena a;
    arena b;
    uint32_t node_a = 0;
    uint32_t node_b = 0;
    nst_status status_a;
    nst_status status_b;
    set_loop(&a, 5, 4);
    set_loop(&b, -50, 4);
    do { /* in turns */
        status_a = nst_step(&loop_model, a.bytes, &node_a);
        status_b = nst_step(&loop_model, b.bytes, &node_b);
    } while (status_a == NST_OK || status_b == NST_OK);
    CHECK(status_a == NST_DONE && status_b == NST_DONE);
    CHECK(get_loop(&a) == expect_loop(5, 4));
    CHECK(get_loop(&b) == expect_loop(-50, 4));
    return 0;
}

typedef struct job {
    int32_t seed;
    const nst_model *model;
    int failures;
} job;

static void *run_job(void *argument) {
    job *const it = (job *)argument;
    arena a;
    int32_t n;
    for (n = 0; n < 2000; n++) {
        const int32_t x = it->seed + n;
        if (it->model == &fork_model) {
            *(int32_t *)nst_input(&fork_model, a.bytes, 0) = x;
            it->failures += nst_run(&fork_model, a.bytes) != NST_OK;
            it->failures += *(const int32_t *)nst_output(&fork_model, a.bytes, 0) != 2 * x + 89;
        } else if (it->model == &small_model) {
            *(int32_t *)nst_input(&small_model, a.bytes, 0) = x;
            it->failures += nst_run(&small_model, a.bytes) != NST_OK;
            it->failures += *(const int32_t *)nst_output(&small_model, a.bytes, 0) != x - 10;
        } else {
            set_loop(&a, x, n % 7);
            it->failures += nst_run(&loop_model, a.bytes) != NST_OK;
            it->failures += get_loop(&a) != expect_loop(x, n % 7);
        }
    }
    return NULL;
}

/* Two instances of two models and one of another, each in its own thread. */
static int test_threads(void) {
    job jobs[5] = {{-1000, &loop_model, 0}, {77, &loop_model, 0}, {5, &small_model, 0}, {9, &fork_model, 0},
                   {-9, &fork_model, 0}};
    pthread_t threads[5];
    int n;
    for (n = 0; n < 5; n++) {
        CHECK(pthread_create(&threads[n], NULL, run_job, &jobs[n]) == 0);
    }
    for (n = 0; n < 5; n++) {
        CHECK(pthread_join(threads[n], NULL) == 0);
        CHECK(jobs[n].failures == 0);
    }
    return 0;
}

static int test_null(void) {
    static arena a;
    uint32_t node = 0;
    CHECK(nst_check(NULL, a.bytes, sizeof a.bytes) == NST_ERR_NULL);
    CHECK(nst_check(&loop_model, NULL, sizeof a.bytes) == NST_ERR_NULL);
    CHECK(nst_run(NULL, a.bytes) == NST_ERR_NULL);
    CHECK(nst_run(&loop_model, NULL) == NST_ERR_NULL);
    CHECK(nst_run_hooked(&loop_model, NULL, on_node, NULL) == NST_ERR_NULL);
    CHECK(nst_step(&loop_model, a.bytes, NULL) == NST_ERR_NULL);
    CHECK(nst_step(NULL, a.bytes, &node) == NST_ERR_NULL);
    CHECK(nst_input(&loop_model, a.bytes, 3) == NULL && nst_output(&loop_model, a.bytes, 1) == NULL);
    CHECK(nst_input(NULL, a.bytes, 0) == NULL && nst_output(NULL, a.bytes, 0) == NULL);
    CHECK(nst_input(&loop_model, NULL, 0) == NULL && nst_output(&loop_model, NULL, 0) == NULL);
    return 0;
}

static int test_arena(void) {
    static arena a;
    CHECK(nst_check(&loop_model, a.bytes, 16) == NST_OK);
    CHECK(nst_check(&loop_model, a.bytes, 15) == NST_ERR_ARENA_SIZE);
    CHECK(nst_check(&loop_model, a.bytes + 1, 16) == NST_ERR_ARENA_ALIGN);
    CHECK(nst_run(&loop_model, a.bytes + NST_ARENA_ALIGN / 2) == NST_ERR_ARENA_ALIGN);
    return 0;
}

static int test_index(void) {
    arena a;
    uint32_t node = loop_model.node_count + 1u;
    CHECK(nst_step(&loop_model, a.bytes, &node) == NST_ERR_INDEX);
    return 0;
}

static int test_malformed_nodes(void) {
    static const nst_operand operands[] = {7, C(3), 7};
    static const nst_node bad[] = {
        {NULL, 0, 3, 1, NST_FLOW_CALL},        /* no kernel */
        {k_add, 1, 3, 1, NST_FLOW_CALL},       /* operands past the end */
        {k_add, 4, 0, 0, NST_FLOW_CALL},       /* first operand past the end */
        {NULL, 0, 1, 0, 4},                    /* unknown flow */
        {NULL, 0, 1, 0, NST_FLOW_JUMP},        /* to node 7 of 1 */
        {NULL, 0, 0, 0, NST_FLOW_JUMP},        /* to nowhere */
        {NULL, 1, 2, 0, NST_FLOW_JUMP_IF_NOT}, /* to node 7 of 1 */
        {NULL, 1, 1, 0, NST_FLOW_JUMP_IF_NOT}, /* to nowhere */
    };
    arena a;
    size_t n;
    for (n = 0; n < sizeof bad / sizeof bad[0]; n++) {
        const nst_model model = {&bad[n], operands, consts, small_inputs, small_outputs, 1, 3, 5, 1, 1, 8, 0};
        CHECK(nst_run(&model, a.bytes) == NST_ERR_NODE);
    }
    return 0;
}

static int test_model_without_nodes(void) {
    const nst_model model = {NULL, NULL, NULL, small_inputs, small_inputs, 0, 0, 0, 1, 1, 4, 0};
    arena a;
    uint32_t node = 0;
    CHECK(nst_run(&model, a.bytes) == NST_OK);
    CHECK(nst_step(&model, a.bytes, &node) == NST_DONE);
    return 0;
}

static int test_texts(void) {
    int n;
    int m;
    for (n = 0; n < NST_STATUS_COUNT; n++) {
        CHECK(strlen(nst_status_text((nst_status)n)) > 1u);
        CHECK(strcmp(nst_status_text((nst_status)n), "unknown status") != 0);
        for (m = 0; m < n; m++) {
            CHECK(strcmp(nst_status_text((nst_status)n), nst_status_text((nst_status)m)) != 0);
        }
    }
    CHECK(strcmp(nst_status_text(NST_OK), "ok") == 0);
    CHECK(strcmp(nst_status_text(NST_STATUS_COUNT), "unknown status") == 0);
    return 0;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        int (*test)(void);
    } tests[] = {
        {"calls", test_calls},
        {"jumps", test_jumps},
        {"condition_may_be_a_constant", test_condition_may_be_a_constant},
        {"step_by_step", test_step_by_step},
        {"hook", test_hook},
        {"fork", test_fork},
        {"fork_at_the_end", test_fork_at_the_end},
        {"malformed_forks", test_malformed_forks},
        {"two_instances", test_two_instances},
        {"threads", test_threads},
        {"null", test_null},
        {"arena", test_arena},
        {"index", test_index},
        {"malformed_nodes", test_malformed_nodes},
        {"model_without_nodes", test_model_without_nodes},
        {"texts", test_texts},
    };
    size_t n;
    for (n = 0; n < sizeof tests / sizeof tests[0]; n++) {
        if (argc < 2) {
            (void)puts(tests[n].name);
        } else if (strcmp(argv[1], tests[n].name) == 0) {
            return tests[n].test();
        }
    }
    return argc < 2 ? 0 : 2;
}
