"""Patches that make Numba compile faster: they skip work whose results are known or unused."""

import operator
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from numba import types
from numba.core import inline_closurecall, ir, transforms
from numba.core.base import BaseContext
from numba.core.cpu import CPUContext
from numba.core.inline_closurecall import InlineWorker
from numba.core.postproc import PostProcessor, VariableLifetime
from numba.core.targetconfig import ConfigStack
from numba.core.typing import Context
from numba.core.typing.templates import _OverloadFunctionTemplate

PARTS = 1000  # parsed functions for inlining


def be_quick() -> None:
    """Apply all patches to this process, before it compiles anything."""
    _read_parts_once()
    _list_variables_quickly()
    _copy_parts_quickly()
    _skip_lifetimes()
    _measure_types_once()
    _type_arithmetic_once()
    _wrap_no_overloads()
    _load_registries_once()


def _read_parts_once() -> None:
    """Numba re-parses the IR of an inlined function at every call site, with all that is inlined
    into it, though it copies it before any change. A sixth of the time of compiling goes there."""
    read_anew, known = InlineWorker.run_untyped_passes, dict[tuple[Any, bool], Any]()

    def read_once(self: Any, function: Any, enable_ssa: bool = False) -> Any:
        if len(known) > PARTS:
            known.clear()
        key = function, enable_ssa
        if key not in known:
            known[key] = read_anew(self, function, enable_ssa)
        return known[key]

    InlineWorker.run_untyped_passes = read_once


def _copy_parts_quickly() -> None:
    """Numba copies an inlined function twice, by copy.deepcopy, the second time for whoever wants
    it unchanged, which nobody does; and with each block all variables of the function, and source
    locations, which never change."""
    inline = InlineWorker.inline_ir
    scopes, variables, made = dict[int, Any](), dict[int, Any](), dict[int, Any]()

    def inline_one(self: Any, *told: Any, **named: Any) -> Any:
        for known in (scopes, variables, made):
            known.clear()
        return inline(self, *told, **named)

    def block_of(block: Any) -> Any:
        if id(block) in made:
            return block
        if id(block.scope) not in scopes:
            scopes[id(block.scope)] = scope_of(block.scope)
        copied = ir.Block(scopes[id(block.scope)], block.loc)
        copied.body = [value_of(instruction, copied.scope) for instruction in block.body]
        made[id(copied)] = copied
        return copied

    def scope_of(scope: Any) -> Any:
        copied = ir.Scope(scope.parent, scope.loc)
        for name, variable in scope.localvars._con.items():
            copied.localvars._con[name] = value_of(variable, copied)
        copied.redefined.update(scope.redefined)
        for name, names in scope.var_redefinitions.items():
            copied.var_redefinitions[name] = set(names)
        return copied

    def value_of(value: Any, scope: Any) -> Any:
        kind = type(value)
        if kind is ir.Var:
            if id(value) not in variables:
                variables[id(value)] = ir.Var(scope, value.name, value.loc)
            return variables[id(value)]
        if kind is list or kind is tuple:
            return kind([value_of(v, scope) for v in value])
        if kind is dict:
            return {key: value_of(v, scope) for key, v in value.items()}
        if not isinstance(value, ir.Inst):
            return value  # constants, names, locations
        copied = object.__new__(kind)
        copied.__dict__.update({name: value_of(v, scope) for name, v in vars(value).items()})
        return copied

    InlineWorker.inline_ir, inline_closurecall.copy = inline_one, SimpleNamespace(deepcopy=block_of)


def _skip_lifetimes() -> None:
    """A dozen times for each function Numba computes which variables live where each block begins,
    which only generators and its object mode ask for; then where each variable ends, which only
    those ask for that count references."""
    run = PostProcessor.run

    def run_shortly(self: Any, emit_dels: bool = False, extend_lifetimes: bool = False) -> None:
        code = self.func_ir
        if code.is_generator:
            run(self, emit_dels, extend_lifetimes)
            return
        code.blocks = transforms.canonicalize_cfg(code.blocks)
        code.variable_lifetime, code.generator_info = VariableLifetime(code.blocks), None
        flags = ConfigStack.top_or_none()
        if emit_dels and (flags is None or flags.nrt):
            self._insert_var_dels(extend_lifetimes=extend_lifetimes)

    PostProcessor.run = run_shortly


def _measure_types_once() -> None:
    """Numba has LLVM parse a module for each question about a type's size."""
    measure, known = BaseContext.get_abi_sizeof, dict[Any, int]()

    def measured(self: Any, kind: Any) -> int:
        if kind not in known:
            known[kind] = measure(self, kind)
        return known[kind]

    BaseContext.get_abi_sizeof = measured


def _list_variables_quickly() -> None:
    """Numba lists the variables of each instruction a hundred times over, by walking all its
    contents, including field names and source locations."""
    variable, place, instruction = ir.Var, ir.Loc, ir.Inst

    def listed(self: Any, value: Any) -> list[Any]:
        found: list[Any] = []
        collect((value,), found)
        return found

    def collect(values: Iterable[Any], found: list[Any]) -> None:
        for value in values:
            kind = type(value)
            if kind is variable:
                found.append(value)
            elif kind is dict:
                collect(value.values(), found)
            elif kind is list or kind is tuple:
                collect(value, found)
            elif kind is not str and kind is not place and isinstance(value, instruction):
                found += value.list_vars()

    instruction._rec_list_vars = listed


def _type_arithmetic_once() -> None:
    """For each addition of two numbers Numba tries all its additions, those of arrays first. The
    types alone determine which one applies."""
    type_anew, known = types.Function.get_call_type, dict[tuple[Any, Any], Any]()
    operators = {value for name, value in vars(operator).items() if not name.startswith("_")}
    scalars = types.Number, types.Boolean

    def type_once(self: Any, context: Any, args: Any, kws: Any) -> Any:
        if kws or self.typing_key not in operators:
            return type_anew(self, context, args, kws)
        if not all(isinstance(argument, scalars) for argument in args):
            return type_anew(self, context, args, kws)
        if (self, args) not in known:
            known[self, args] = type_anew(self, context, args, kws)
        return known[self, args]

    types.Function.get_call_type = type_once


def _wrap_no_overloads() -> None:
    """Numba makes its own functions, such as max, callable from Python and C wherever compiled code
    calls them."""
    build = _OverloadFunctionTemplate._build_impl
    unwrapped = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}

    def built(self: Any, *told: Any) -> Any:
        self._jit_options = {**self._jit_options, **unwrapped}
        return build(self, *told)

    _OverloadFunctionTemplate._build_impl = built


def _load_registries_once() -> None:
    """Whenever Numba meets an intrinsic it imports twenty of its modules and asks all registries
    for new entries. Later ones are in the built-in registry and in the first, where intrinsics
    are. And at first it imports SciPy's linear algebra, to see that SciPy is there."""

    def load_once(kind: Any) -> None:
        load = kind.load_additional_registries

        def loaded(self: Any) -> None:
            if len(self._registries) > 1:
                self.install_registry(next(iter(self._registries)))
                return
            from numba.np import linalg

            ensured, linalg.ensure_blas = linalg.ensure_blas, lambda: None
            load(self)
            linalg.ensure_blas = ensured

        kind.load_additional_registries = loaded

    load_once(CPUContext)
    load_once(Context)
