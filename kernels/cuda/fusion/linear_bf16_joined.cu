// Two or three BF16 weights times the same few tokens, rounded to bfloat16, in one launch.
#include "linear_float.cuh"

FEW_JOINED(1, true, 1, 2)
FEW_JOINED(2, true, 2, 2)
FEW_JOINED(4, true, 4, 4)
FEW_JOINED(8, true, 8, 4)
