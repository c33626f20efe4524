"""Memory on the stack and the bits of a float, so that a sampler takes nothing from the heap."""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

I64 = ir.IntType(64)


@intrinsic(prefer_literal=True)
def stack(typing, count):
    """A float64 array of `count` (a literal) uninitialised elements, alive until the return."""
    size, kind = count.literal_value, types.Array(types.float64, 1, "C")

    def codegen(context, builder, signature, values):
        memory = cgutils.alloca_once(builder, ir.ArrayType(ir.DoubleType(), size))
        view = context.make_array(kind)(context, builder)
        view.data = builder.bitcast(memory, ir.DoubleType().as_pointer())
        view.shape = cgutils.pack_array(builder, [I64(size)])
        view.strides = cgutils.pack_array(builder, [I64(8)])
        view.itemsize, view.nitems = I64(8), I64(size)
        view.meminfo = cgutils.get_null_value(view.meminfo.type)
        view.parent = cgutils.get_null_value(view.parent.type)
        return view._getvalue()

    return kind(count), codegen


@intrinsic
def bits_of(typing, value):
    """The bits of a float32 as an int32."""

    def codegen(context, builder, signature, values):
        return builder.bitcast(values[0], ir.IntType(32))

    return types.int32(types.float32), codegen
