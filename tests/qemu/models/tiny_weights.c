#include "tiny.h"
NST_WEIGHTS_SECTION const float tiny_w[4] = {1.0f, -2.0f, 3.0f, 0.5f};
