// Two or three weights of floats that meet the same few tokens.
#include "linear_float.cuh"

FEW_JOINED(1, false, 1, 2)
FEW_JOINED(2, false, 2, 2)
FEW_JOINED(4, false, 4, 4)
FEW_JOINED(8, false, 8, 4)
