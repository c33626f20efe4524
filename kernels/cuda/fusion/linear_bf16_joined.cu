// Two or three BF16 weights times the same few tokens, rounded to bfloat16, in one launch.
#include "linear_float.cuh"

FEW_JOINED(1, true, 1, ROWS_OF_1)
FEW_JOINED(2, true, 2, ROWS_OF_2)
FEW_JOINED(4, true, 4, ROWS_OF_4)
FEW_JOINED(8, true, 8, ROWS_OF_8)
