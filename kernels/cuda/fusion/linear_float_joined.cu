// Two or three float weights times the same few tokens in one launch.
#include "linear_float.cuh"

FEW_JOINED(1, false, 1, ROWS_OF_1)
FEW_JOINED(2, false, 2, ROWS_OF_2)
FEW_JOINED(4, false, 4, ROWS_OF_4)
FEW_JOINED(8, false, 8, ROWS_OF_8)
