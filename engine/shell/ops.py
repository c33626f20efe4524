"""assay ops: the table of ops and their kernels."""

import json
from typing import TYPE_CHECKING

from engine.shell.command_line import options as o
from engine.shell.command_line.groups import option

if TYPE_CHECKING:
    from kernels.call import AnyKernel

NOT_HERE = {"cpu": "not on this CPU", "cuda": "no such GPU here"}


def ops(
    tuning: bool = option(False, "Show tuned knobs instead."),
    as_json: o.Json = False,
) -> None:
    """List every op, its signature, and which kernels are certified on this machine."""
    if tuning:
        from engine.shell.tune import show_tuned
        from kernels.tuning import current

        nothing = "nothing was measured on this machine yet: assay tune MODEL"
        show_tuned(current(), as_json, nothing)
        return
    from rich.markup import escape

    from engine.shell.terminal import note, stdout, table
    from kernels.certificates import Key, Store
    from kernels.table import EVERY, brought, complaints, of_packages
    from reference.table import OPS
    from reference.table import package_ops as ops_of_packages

    known = Store().load()
    every, packages = (*EVERY, *of_packages()), {n: p for n, (_, p) in brought()[0].items()}
    theirs, owners, _ = ops_of_packages()
    for complaint in complaints():
        note(complaint)

    def state(kernel: "AnyKernel") -> str:
        if kernel.missing():
            return NOT_HERE[kernel.target]
        certificate = known.get(Key.of(kernel).digest)
        if certificate is None:
            return "untried"
        return certificate.level if certificate.passed else "FAILED"

    if as_json:
        kernels = [
            {"kernel": k.name, "op": k.op, "certificate": state(k)}
            | ({"package": str(packages[k.name])} if k.name in packages else {})
            for k in every
        ]
        signatures = {name: op.signature for name, op in (OPS | theirs).items()}
        by_package = {name: str(package) for name, package in owners.items()}
        print(json.dumps({"ops": signatures, "kernels": kernels, "packages": by_package}))
        return
    shown = table("op", "kernels", "formats", "certificate", "signature")
    seen = stdout().is_terminal  # else a row has all of its cells in a line
    for name, op in (OPS | theirs).items():
        groups: dict[tuple[str, str], list[str]] = {}
        for kernel in (k for k in every if k.op == name):
            package = packages.get(kernel.name)
            variant = f"{kernel.target}/{kernel.variant}" + (f", {package}" if package else "")
            group = groups.setdefault((variant, state(kernel)), [])
            group.append(kernel.format or "")
        for i, ((variant, certificate), formats) in enumerate(groups.items()):
            owned = f"{name}, {owners[name]}" if name in owners else name
            signature = op.signature.replace(" -> ", "\n-> ") if seen else op.signature
            first = ("", "") if i and seen else (owned, signature)
            listed = " ".join(formats)
            shown.add_row(first[0], variant, listed, certificate, escape(first[1]))
        shown.add_section()
    stdout().print(shown)
