"""Mutants that compute the same, or what no kernel of this machine reaches, with the reason."""

from conformance.mutants.mutate import Mutant

# (file under kernels/cpu, the line of source, what was changed; "" for any change of the line)
EQUIVALENT: dict[tuple[str, str, str], str] = {
    (
        "layer_norm.py",
        "squares += (float(x[t, i]) - mean) * (float(x[t, i]) - mean)",
        "float(x[t, i]) - mean -> float(x[t, i]) + mean",
    ): "the sum of x^2 - mean^2 is that of (x - mean)^2",
    (
        "gated_activations.py",
        "for i in range(first, last, 16):",
        "16 -> 15",
    ): "every sixteenth element is done twice, with the same result",
}


def reason_of(mutant: Mutant) -> str:
    """Why no trial can notice it; "" of one that a trial should notice."""
    file = mutant.file.removeprefix("kernels/cpu/")
    places = ((file, mutant.text, what) for what in (mutant.what, ""))
    return next((EQUIVALENT[place] for place in places if place in EQUIVALENT), "")
