"""Builds a step's graph: embeddings, projections, norms, rope and attention over the cache, shared
by families."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.config import ModelConfig, ModelError
from engine.graph import LOGITS, Graph, Value


@dataclass(frozen=True, slots=True)
class StepInputs:
    """Inputs written before each step (for lists and spans see reference/attention); `window_spans`
    where blocks have a window, `sources` and `targets` where they are recurrent (see
    reference/recurrent/state.py), `of_blocks` the rows of tokens' embeddings where each block has
    its own."""

    tokens: Value
    positions: Value
    cells: Value
    spans: Value
    lists: Value
    cell_positions: Value
    rows: Value
    window_spans: Value | None = None
    sources: Value | None = None
    targets: Value | None = None
    of_blocks: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class Network:
    """A family's graph under construction: a `graph`, whose nodes read `weights` and `caches` by
    their names and the `inputs` of a step. Methods append nodes and return their outputs; the
    tensor NAME.weight is read by a node NAME."""

    config: ModelConfig
    weights: Mapping[str, Value]
    inputs: StepInputs
    caches: Mapping[str, Value]
    graph: Graph = field(default_factory=Graph)

    def embedded(self, factor: float = 1.0) -> Value:
        """The embeddings of a step's tokens [tokens hidden], times a factor."""
        table = self.weights["token_embd.weight"]
        x = self.graph("embedding", "token_embd", tokens=self.inputs.tokens, weight=table)
        return self.scaled("embd", x, factor)

    def wanted(self, x: Value) -> Value:
        """The rows of x [tokens hidden] for which logits are wanted [outputs hidden]."""
        return self.graph("embedding", "rows", tokens=self.inputs.rows, weight=x.as_weight())

    def logits(self, x: Value) -> Value:
        """Logits [outputs vocab] of the final norm's output; the output matrix may be tied to the
        embedding."""
        output = "output" if "output.weight" in self.weights else "token_embd"
        return self.graph("linear", LOGITS, x=x, weight=self.weights[f"{output}.weight"])

    def capped(self, logits: Value) -> Value:
        """Logits after the config's soft cap, if it has one."""
        cap = self.config.logit_cap
        return self.graph("softcap", "softcap", x=logits, cap=cap) if cap else logits

    def project(self, name: str, x: Value) -> Value:
        """Linear with the tensor NAME.weight, and NAME.bias where there is one."""
        return self.biased(name, self.graph("linear", name, x=x, weight=self._weight(name)))

    def biased(self, name: str, x: Value, part: str = "") -> Value:
        """x plus NAME.bias, or x alone where there is none; `part` distinguishes nodes of one
        name."""
        bias = self.weights.get(f"{name}.bias")
        return self.graph("add_bias", f"{name}.bias{part}", x=x, bias=bias) if bias else x

    def scaled(self, label: str, x: Value, factor: float) -> Value:
        """factor * x, or x itself where the factor is 1."""
        return x if factor == 1 else self.graph("scale", label, x=x, factor=factor)

    def rms_norm(self, name: str, x: Value, weight: Value | None = None) -> Value:
        """rms_norm with that weight or the tensor NAME.weight, or x where there is neither."""
        weight = weight or self.weights.get(f"{name}.weight")
        if weight is None:
            return x
        return self.graph("rms_norm", name, x=x, weight=weight, eps=self.config.norm_eps)

    def layer_norm(self, name: str, x: Value) -> Value:
        """layer_norm with the tensors NAME.weight and NAME.bias, or the constant for norms without
        a bias."""
        bias = self.weights.get(f"{name}.bias") or self.weights.get("layer_norm.no_bias")
        if bias is None:
            raise ModelError(f"tensor {name}.bias is missing")
        own = {"weight": self._weight(name), "bias": bias}
        return self.graph("layer_norm", name, x=x, **own, eps=self.config.norm_eps)

    def heads_normed(self, name: str, x: Value) -> Value:
        """x [tokens heads*head_dim] by the tensor NAME.weight, or x where there is none.

        In families with `plain_norm` every head is a row of its own for layer_norm, times that
        head's row of the tensor [heads head_dim]. In others it is for rms_norm where the tensor is
        [head_dim], and all heads are one row where it has them all.
        """
        factors = self.weights.get(f"{name}.weight")
        if factors is None:
            return x
        (tokens, width), head_dim = x.dims, self.config.head_dim
        assert isinstance(width, int)
        rows = x.view(f"{tokens}*{width // head_dim}", head_dim)
        if "heads_norm.weight" not in self.weights:
            return self.rms_norm(name, rows if factors.dims == (head_dim,) else x)
        plain = {part: self.weights[f"heads_norm.{part}"] for part in ("weight", "bias")}
        eps = self.config.norm_eps
        rows = self.graph("layer_norm", f"{name}.rows", x=rows, **plain, eps=eps)
        return self.graph("mul_columns", name, x=rows.view(tokens, width), factors=factors)

    def rotation(self) -> Value:
        """Cosines and sines of a step's positions."""
        return self._rotation("rotation", "rope.frequencies", self.config.rope(None)[1])

    def rotation_of_queries(self, rotation: Value) -> Value:
        """That of queries: `rotation`, that of keys, unless attention has a temperature."""
        own, magnitude = self.config.temperature, self.config.rope(None)[1]
        if not own:
            return rotation
        return self._rotation("rotation.queries", "rope.frequencies", magnitude, own)

    def rotation_of_windows(self, rotation: Value) -> Value:
        """That of blocks with a window: `rotation`, that of the others, unless they have a base."""
        name = "rope.frequencies.windows"
        return self._rotation("rotation.windows", name, 1.0) if name in self.weights else rotation

    def _rotation(self, label: str, name: str, magnitude: float, temperature: float = 0.0) -> Value:
        positions, frequencies = self.inputs.positions, self.weights[name]
        return self.graph(
            "rotation", label, positions=positions, frequencies=frequencies, magnitude=magnitude,
            temperature=temperature, length=self.config.first_context,
        )  # fmt: skip

    def turned(
        self,
        rope: str,
        i: int,
        q: Value,
        k: Value,
        rotation: Value,
        of_queries: Value | None = None,
    ) -> list[Value]:
        """Block i's queries [tokens heads head_dim] and keys [tokens kv_heads head_dim], rotated
        by an op; queries by their own rotation where there is one."""
        tokens, config = rotation.dims[0], self.config
        return [
            self.graph(
                rope, f"blk.{i}.{n}_rope",
                x=x.view(tokens, heads, config.head_dim), rotation=turn,
            )
            for n, x, heads, turn in (
                ("q", q, config.heads, of_queries or rotation), ("k", k, config.kv_heads, rotation)
            )
        ]  # fmt: skip

    def attention(
        self,
        i: int,
        h: Value,
        rotation: Value | None = None,
        rope: str = "rope_neox",
        of_queries: Value | None = None,
    ) -> Value:
        """Block i's attention of h [tokens hidden]: queries and keys are normalised where the file
        has norms of them, and turned as `turned` does where there is a rotation; what each head has
        read is times a gate where the file has one. -> [tokens hidden].
        """
        name, gate = f"blk.{i}.attn", None
        q, k, v = (self.project(f"{name}_{part}", h) for part in "qkv")
        if f"{name}_gate.weight" in self.weights:
            gate = self.project(f"{name}_gate", h)
        q = self.heads_normed(f"{name}_q_norm", q)
        k = self.heads_normed(f"{name}_k_norm", k)
        if rotation:
            q, k = self.turned(rope, i, q, k, rotation, of_queries)
        if gate:
            gate = self.graph("sigmoid", f"{name}_open", x=gate)
        return self.attend(i, q, k, v, gate)

    def attend(
        self, i: int, q: Value, k: Value | None, v: Value | None, gate: Value | None = None
    ) -> Value:
        """Keys and values into block i's cache, attention over it or the block's window of it, and
        its output projected, times a gate [tokens heads*head_dim] where there is one. Without keys
        and values the cache, another block's, is read as it is.

        q [tokens heads*head_dim], k and v [tokens kv_heads*head_dim] in any view
        -> [tokens hidden].
        """
        block, config, tokens = f"blk.{i}", self.config, self.inputs.tokens.dims[0]
        k_cache, v_cache = (self.caches[f"{block}.{part}_cache"] for part in "kv")
        for cache, new in ((k_cache, k), (v_cache, v)):
            if new is not None:
                self.write(cache, new.view(tokens, config.kv_heads * config.head_dim))
        q = q.view(tokens, config.heads, config.head_dim)
        read = self.read(i, q, k_cache, v_cache).view(tokens, config.heads * config.head_dim)
        if gate:
            read = self.graph("mul", f"{block}.attn_gated", x=read, y=gate)
        return self.project(f"{block}.attn_output", read)

    def write(self, cache: Value, x: Value) -> None:
        """Write rows of a step's tokens to their cells."""
        name, cells = f"{cache.name}_write", self.inputs.cells
        self.graph("kv_write", name, out=cache, x=x, cells=cells, before=cache)

    def read(self, i: int, q: Value, k_cache: Value, v_cache: Value) -> Value:
        """Each head's attention output over the cells that its tokens see [tokens heads size]."""
        block, inputs, weights = f"blk.{i}", self.inputs, self.weights
        spans = inputs.window_spans if i in self.config.windowed else inputs.spans
        assert spans
        return self.graph(
            "attention",
            f"{block}.attention",
            q=q,
            k=k_cache,
            v=v_cache,
            lists=inputs.lists,
            spans=spans,
            positions=inputs.positions,
            cell_positions=inputs.cell_positions,
            slopes=weights["attention.slopes"],
            sinks=weights.get(f"{block}.attn_sinks.weight") or weights["attention.sinks"],
            scale=self.config.score_scale,
            softcap=self.config.score_cap,
        )

    def add(self, label: str, x: Value, y: Value) -> Value:
        """x + y."""
        return self.graph("add", label, x=x, y=y)

    def _weight(self, name: str) -> Value:
        return self.weights[f"{name}.weight"]
