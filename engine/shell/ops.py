"""assay ops: the table of ops and their kernels."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from engine.shell import options as o

if TYPE_CHECKING:
    from kernels.call import AnyKernel

NOT_HERE = {"cpu": "not on this CPU", "cuda": "no such GPU here"}


def ops(
    tuning: Annotated[
        bool, typer.Option("--tuning", help="What was measured to suit this machine, instead.")
    ] = False,
    as_json: o.Json = False,
) -> None:
    """List every op, its signature, and which kernels are certified on this machine."""
    if tuning:
        _tuning(as_json)
        return
    from rich.markup import escape
    from rich.table import Table

    from engine.shell.show import stdout
    from kernels.certificates import Key, Store
    from kernels.table import EVERY
    from reference.table import OPS

    known = Store().load()

    def state(kernel: "AnyKernel") -> str:
        if kernel.missing():
            return NOT_HERE[kernel.target]
        certificate = known.get(Key.of(kernel).digest)
        if certificate is None:
            return "untried"
        return certificate.level if certificate.passed else "FAILED"

    if as_json:
        kernels = [{"kernel": k.name, "op": k.op, "certificate": state(k)} for k in EVERY]
        signatures = {name: op.signature for name, op in OPS.items()}
        print(json.dumps({"ops": signatures, "kernels": kernels}))
        return
    table = Table("op", "kernels", "formats", "certificate", "signature")
    for name, op in OPS.items():
        groups: dict[tuple[str, str], list[str]] = {}
        for kernel in (k for k in EVERY if k.op == name):
            group = groups.setdefault((f"{kernel.target}/{kernel.variant}", state(kernel)), [])
            group.append(kernel.format or "")
        for i, ((variant, certificate), formats) in enumerate(groups.items()):
            first = (name, op.signature.replace(" -> ", "\n-> ")) if i == 0 else ("", "")
            listed = " ".join(formats)
            table.add_row(first[0], variant, listed, certificate, escape(first[1]))
        table.add_section()
    stdout().print(table)


def _tuning(as_json: bool) -> None:
    """What is kept of kernels as they are now."""
    from dataclasses import asdict

    from engine.shell.show import stdout
    from engine.shell.tune import table_of
    from kernels.tuning import current

    found = current()
    if as_json:
        print(json.dumps([asdict(one) for one in found]))
    elif found:
        stdout().print(table_of(found))
    else:
        print("nothing was measured on this machine yet: assay tune MODEL")
