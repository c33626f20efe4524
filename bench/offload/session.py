"""The process of one way to run a model. Until it is asked to open it, it has loaded next to
nothing, so that a limit of memory put on it then is on all that it uses."""

from typing import TYPE_CHECKING, Any

from bench.child import serve

if TYPE_CHECKING:
    from bench.offload.runner import Runner


def main() -> None:
    """The first question is a way; each further one has the tokens of a sample."""
    runners: list[Runner] = []

    def answer(question: dict[str, Any]) -> dict[str, Any]:
        from bench.offload.runner import opened

        if "open" in question:
            runners.append(opened(**question["open"]))
            return runners[0].about()
        return runners[0].sample(**question)

    serve(answer)


if __name__ == "__main__":
    main()
