"""AsyncEngine: tasks submit, stream and cancel; each gets what it would get alone."""

import asyncio
import random
from collections.abc import Coroutine, Iterator
from typing import Any

import numpy as np
import pytest

from conformance.support.models.spelling import EOS, letters
from engine import AsyncEngine, Engine, Piece, SamplingParams
from engine.errors import BusyError, ClosedError, EngineError
from reference.op import Array

OPTIONS = {"threads": 1, "context": 44, "batch": 12}
WORDS = ["the cat sat", "the cat ran", "a dog", "the cat sat on the mat", "dog", "mat", "on"]
TOO_LONG = letters("q" * 45)
SOME = SamplingParams(max_tokens=8, ignore_eos=True)  # or a text may be empty
ENDLESS = SamplingParams(max_tokens=None, temperature=0, logit_bias={EOS: -np.inf})


@pytest.fixture(scope="module")
def answer_alone(spelling) -> Iterator[Engine]:
    with Engine.load(spelling, **OPTIONS) as engine:
        yield engine


def serve(path, program) -> Any:
    """The result of a program with an AsyncEngine, within a minute."""

    async def run() -> Any:
        async with AsyncEngine.load(path, sequences=3, **OPTIONS) as engine:
            return await program(engine)

    return asyncio.run(asyncio.wait_for(run(), 60))


def params(i: int) -> SamplingParams:
    return SamplingParams(max_tokens=1 + i % 9, seed=i, n=1 + i % 2, logprobs=i % 3 or None)


def test_many_tasks_get_the_answers_of_each_alone(spelling, answer_alone):
    """100 tasks at any time, some of which stream, some wait, some stop early; of several prompts
    one that is too long fails alone."""
    random_ = random.Random(1)

    async def ask(engine: AsyncEngine, i: int) -> Any:
        await asyncio.sleep(random_.random() / 20)
        prompt = letters(WORDS[i % len(WORDS)])
        match i % 4:
            case 0:
                found, failed = await engine.generate([prompt, TOO_LONG], params(i))
                assert failed.error.startswith("the prompt has 45 tokens")
                assert failed.outputs[0].finish_reason == "error"
                return found.outputs
            case 1:
                return [piece async for piece in engine.stream(prompt, params(i))]
            case 2:
                answer = engine.submit(prompt, params(i), priority=random_.choice((-1, 0, 1)))
                result, pieces = await answer.result(), [piece async for piece in answer]
                return result.outputs, pieces
            case _:
                pieces = []
                stream = engine.stream(prompt, params(i))
                async for piece in stream:
                    pieces.append(piece)
                    if len(pieces) == 2:
                        break
                await stream.aclose()
                return pieces

    async def program(engine: AsyncEngine) -> list[Any]:
        return await asyncio.gather(*(ask(engine, i) for i in range(100)))

    for i, found in enumerate(serve(spelling, program)):
        prompt = letters(WORDS[i % len(WORDS)])
        answer_alone.reset()
        outputs = answer_alone.generate(prompt, params(i)).outputs
        answer_alone.reset()
        pieces = list(answer_alone.stream(prompt, params(i)))
        match i % 4:
            case 0:
                assert found == outputs
            case 1:
                assert by_index(found) == by_index(pieces)
            case 2:
                assert found[0] == outputs
                assert by_index(found[1]) == by_index(pieces)
            case _:
                assert len(found) == min(2, len(pieces))
                assert all(piece in pieces for piece in found)


def by_index(pieces: list[Piece]) -> list[Piece]:
    return sorted(pieces, key=lambda piece: piece.index)


def test_a_prompt_that_fails_raises(spelling):
    def broken(_: list[int], logits: Array) -> Array:
        raise KeyError("mine")

    async def program(engine: AsyncEngine) -> None:
        with pytest.raises(EngineError, match=r"^the prompt has 45 tokens"):
            await engine.generate(TOO_LONG)
        with pytest.raises(EngineError, match=r"^the prompt is empty"):
            async for _ in engine.stream(letters("")):
                pass
        with pytest.raises(KeyError, match="mine"):
            await engine.generate("cat", SamplingParams(logits_processors=[broken]))
        assert (await engine.generate("cat", SOME)).text

    serve(spelling, program)


def test_scores_and_embeddings_beside_answers(spelling, answer_alone):
    """While more answers than sequences are active, each has the bits that it has alone; a
    cancelled task withdraws its requests; errors go only to their task."""
    pairs = [(letters(word), letters(" and a mat")) for word in WORDS]
    scores = answer_alone.score(*map(list, zip(*pairs, strict=True)))
    texts = [letters(word) for word in WORDS]
    vectors = {pooling: answer_alone.embed(texts, pooling) for pooling in ("mean", "last", "none")}

    async def program(engine: AsyncEngine) -> None:
        answers = [engine.submit(letters(WORDS[i % 7]), params(i)) for i in range(40)]
        away = asyncio.create_task(engine.embed(texts * 9, "none", priority=1))
        found, one, cls, *rest = await asyncio.gather(
            engine.score(*map(list, zip(*pairs, strict=True)), priority=-1),
            engine.score(*pairs[2]),
            engine.embed(texts[1], "cls", normalize=False),
            *(engine.embed(texts, pooling) for pooling in vectors),
        )
        assert found == scores
        assert one == scores[2]
        np.testing.assert_array_equal(cls, answer_alone.embed(texts[1], "none", normalize=False)[0])
        for (pooling, wanted), got in zip(vectors.items(), rest, strict=True):
            for row, expected in zip(got, wanted, strict=True):
                np.testing.assert_array_equal(row, expected, pooling)
        away.cancel()
        with pytest.raises(asyncio.CancelledError):
            await away
        with pytest.raises(EngineError, match=r"^text 1: the prompt has 45 tokens"):
            await engine.embed([texts[0], TOO_LONG])
        with pytest.raises(EngineError, match=r"^pooling is 'max'"):
            await engine.embed(texts, "max")
        with pytest.raises(EngineError, match=r"^the continuation has no token"):
            await engine.score("cat", "")
        for i, answer in enumerate(answers):
            result = await answer.result()
            answer_alone.reset()
            assert result.outputs == answer_alone.generate(letters(WORDS[i % 7]), params(i)).outputs
        assert not engine._answers

    serve(spelling, program)


@pytest.mark.parametrize("how", ["answer", "task"])
def test_cancellation(spelling, how):
    """An answer is cancelled by itself or by its waiting task: its sequence is reused."""

    async def program(engine: AsyncEngine) -> None:
        for _ in range(4):  # more often than there are sequences
            begun = asyncio.Event()
            loop = asyncio.get_running_loop()

            def watch(history, logits, loop=loop, begun=begun):
                loop.call_soon_threadsafe(begun.set)
                return logits

            asked = SamplingParams(
                max_tokens=None, seed=0, ignore_eos=True, n=40, logits_processors=[watch]
            )
            if how == "answer":
                answer = engine.submit("a cat", asked)
                await begun.wait()
                answer.cancel()
                result = await answer.result()
                reasons = [one.finish_reason for one in result.outputs]
                assert reasons[-1] == "cancelled"
            else:
                task = asyncio.create_task(engine.generate(["a cat", "a dog"], asked))
                await begun.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
        assert (await engine.generate("cat", SOME)).text
        assert not engine._answers

    serve(spelling, program)


def test_closing_with_pending_answers(spelling):
    """Waiting tasks get an error, and later ones too."""

    async def program() -> list[Any]:
        engine = AsyncEngine.load(spelling, sequences=3, **OPTIONS)
        answers = [engine.submit("a cat", ENDLESS) for _ in range(500)]
        waiting: list[Coroutine[Any, Any, Any]] = [answer.result() for answer in answers]
        first = asyncio.gather(*waiting, return_exceptions=True)
        await answers[0].result()
        await engine.aclose()
        found = await asyncio.wait_for(first, 60)
        with pytest.raises(ClosedError, match=r"^this engine was closed$"):
            engine.submit("a cat")
        return found

    found = asyncio.run(program())
    errors = [one for one in found if isinstance(one, Exception)]
    assert {str(error) for error in errors} == {"this engine was closed"}
    assert all(isinstance(error, ClosedError) for error in errors)
    assert 0 < len(errors) < 500


def test_another_generation_ends_pending_answers(spelling):
    """A direct generation ends the pending answers with one line, and continues."""

    async def program(engine: AsyncEngine) -> None:
        answer = engine.submit("a cat", SamplingParams(max_tokens=None, n=400, ignore_eos=True))
        async for _ in answer:
            break
        engine.engine.begin()
        with pytest.raises(BusyError, match=r"^another generation has begun on the same engine$"):
            await answer.result()
        assert (await engine.generate("cat", SOME)).text

    serve(spelling, program)


def test_a_failed_step_ends_active_tasks(spelling, monkeypatch):
    """An unexpected error reaches all active tasks; later ones are served."""

    async def program(engine: AsyncEngine) -> None:
        def broken() -> None:
            raise RuntimeError("out of order")

        answers = [engine.submit("a cat", ENDLESS) for _ in range(20)]
        async for _ in answers[0]:
            break
        engine.call_between_steps(lambda scheduler: monkeypatch.setattr(scheduler, "step", broken))
        for answer in answers[3:]:
            with pytest.raises(RuntimeError, match="out of order"):
                await answer.result()
        assert (await engine.generate("cat", SOME)).text

    serve(spelling, program)


def test_answers_of_a_closed_loop_are_dropped(spelling):
    """Answers of a closed event loop are dropped, and others are served."""
    engine = AsyncEngine(Engine.load(spelling, sequences=3, **OPTIONS))

    async def ask_and_go() -> None:
        engine.submit("a cat", SamplingParams(max_tokens=None, n=400, ignore_eos=True))

    async def ask() -> str:
        return (await engine.generate("cat", SOME)).text

    asyncio.run(ask_and_go())
    assert asyncio.run(asyncio.wait_for(ask(), 60))
    engine.close()
