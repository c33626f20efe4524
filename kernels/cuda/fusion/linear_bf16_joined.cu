// Two or three bfloat16 weights that meet the same few tokens, rounded on their way.
#include "linear_float.cuh"

FEW_JOINED(1, true, 1, 2)
FEW_JOINED(2, true, 2, 2)
FEW_JOINED(4, true, 4, 4)
FEW_JOINED(8, true, 8, 4)
