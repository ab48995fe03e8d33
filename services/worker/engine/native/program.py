"""A forward pass as a list of ops: made once at the start, run for every step.

Knows how ops are put down and which buffers lie between them; which ops a decoder needs is in `decoder.py`.
Buffers hold `MAX_ROWS` tokens; a larger batch goes through in several passes.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from services.worker.engine.cold_zone import PASS_TOKENS
from services.worker.engine.native.library import Cold, Flag, Kind, Op
from services.worker.engine.native.packed_weights import PackedLinear, buffer, padded

MAX_ROWS = PASS_TOKENS


@dataclass(frozen=True, slots=True)
class Activation:
    """The input of a linear: rows of floats [MAX_ROWS, width], and what is made of them for it.

    tiles: the same floats in tiles of rows; or `bytes` in tiles, with scale and sum of each row.
    """

    rows: Tensor
    tiles: Tensor | None
    bytes: Tensor | None
    scales: Tensor | None
    sums: Tensor | None

    @classmethod
    def make(cls, features: int, quantized: bool) -> Activation:
        """Buffers for that many features."""
        width = padded(features)
        rows = buffer(MAX_ROWS, width)
        if not quantized:
            return cls(rows, buffer(MAX_ROWS, width), None, None, None)
        return cls(
            rows,
            None,
            buffer(MAX_ROWS, width, dtype=torch.int8),
            buffer(MAX_ROWS),
            buffer(MAX_ROWS, dtype=torch.int32),
        )

    @property
    def width(self) -> int:
        """Floats of a row, and floats or bytes of a row in tiles."""
        return self.rows.shape[1]

    def input(self) -> tuple[int, int, int, int]:
        """Addresses of tiles, bytes, scales and sums; 0 for what there is not."""
        return _address(self.tiles), _address(self.bytes), _address(self.scales), _address(self.sums)


@dataclass(frozen=True, slots=True)
class Parts:
    """What the ranks add to the residual stream: [count][MAX_ROWS, width], one after another from `address`.

    own: where this rank puts its share.
    """

    address: int
    own: int
    count: int
    owner: object = None

    @classmethod
    def local(cls, part: Tensor) -> Parts:
        """One part, in this process's own memory."""
        return cls(part.data_ptr(), part.data_ptr(), 1, part)


@dataclass(frozen=True, slots=True)
class HeadShape:
    """This rank's heads."""

    heads: int
    kv_heads: int
    dim: int

    @property
    def width(self) -> int:
        """Floats of a cached key or value."""
        return padded(self.dim)


class Program:
    """Ops in their order, and everything that they point to."""

    def __init__(self) -> None:
        self._ops: list[Op] = []
        self._kept: list[object] = []

    def embed(self, table: Tensor, kind: int, first_id: int, out: int, width: int) -> None:
        """Rows of [ids, columns] by token id into [rows, width]; zeros for the ids of other ranks."""
        self._add(
            Kind.EMBED,
            n=(table.shape[1], width, first_id, table.shape[0]),
            p=(_address(table), out),
            type=kind,
        )
        self._kept.append(table)

    def residual(
        self,
        hidden: Tensor,
        columns: int,
        parts: Parts,
        *,
        bias: Tensor | None,
        norm: Tensor,
        eps: float,
        out: Activation,
        flags: Flag = Flag.NONE,
    ) -> None:
        """hidden += sum of parts + bias (or = with ASSIGN); and `out` = its RMS norm, ready for a linear."""
        width = hidden.shape[1]
        self._add(
            Kind.RESIDUAL,
            flags,
            n=(columns, width, MAX_ROWS * width, parts.count, out.width),
            p=(
                _address(hidden),
                parts.address,
                _address(bias),
                _address(norm),
                _address(out.rows),
                *out.input(),
            ),
            eps=eps,
        )
        self._kept += [hidden, parts, bias, norm, out]

    def linear(
        self, source: Activation, weights: PackedLinear, out: int, stride: int, flags: Flag = Flag.NONE
    ) -> None:
        """[rows, inputs] -> `columns` floats of each row, rows `stride` floats apart."""
        self._add(
            Kind.LINEAR,
            flags | (Flag.SILU if weights.gated else Flag.NONE),
            n=(weights.inputs, source.width, weights.panels, stride, weights.columns),
            p=(
                *source.input(),
                _address(weights.weights),
                out,
                _address(weights.bias),
                _address(weights.scales),
            ),
            type=weights.type,
        )
        self._kept += [source, weights]

    def attention(
        self,
        qkv: Tensor,
        shape: HeadShape,
        cache: tuple[Tensor, Tensor],
        *,
        cold: Cold | None,
        rotation: tuple[Tensor, Tensor],
        norms: tuple[Tensor, Tensor] | None,
        eps: float,
        window: int,
        out: Activation,
    ) -> None:
        """Turns queries and keys, stores keys and values, attends: [rows, heads] -> [rows, heads * dim].

        With `cold` the cache is of places, and blocks that are full are compressed in between.
        """
        q_norm, k_norm = norms or (None, None)
        n = (shape.heads, shape.kv_heads, shape.dim, shape.width, window, qkv.shape[1], out.width)
        p = tuple(_address(x) for x in (qkv, *cache, *rotation, q_norm, k_norm, out.rows))
        flags = Flag.HALF if cache[0].dtype == torch.float16 else Flag.NONE
        if cold is not None:
            flags |= Flag.ZONED
            p += (ctypes.addressof(cold),)
        self._add(Kind.ROTATE, flags, n=n, p=p, eps=eps)
        if cold is not None:
            self._add(Kind.COMPRESS, flags, n=n, p=p)
        self._add(Kind.ATTENTION, flags, n=n, p=p, eps=eps)
        self._kept += [qkv, cache, cold, rotation, norms, out]

    def prepare(self, target: Activation) -> None:
        """Makes the linear's input of the activation's rows."""
        self._add(Kind.PREPARE, n=(target.width, target.width), p=(_address(target.rows), *target.input()))
        self._kept.append(target)

    def exchange(self) -> None:
        """All ranks have written their part."""
        self._add(Kind.EXCHANGE)

    def segments(self) -> list[ctypes.Array[Op]]:
        """The ops between exchanges, for collectives that are called from Python."""
        parts: list[list[Op]] = [[]]
        for op in self._ops:
            if op.kind == Kind.EXCHANGE:
                parts.append([])
            else:
                parts[-1].append(op)
        return [_array(part) for part in parts]

    def whole(self, exchanges: bool) -> ctypes.Array[Op]:
        """All ops; a rank alone has nothing to exchange."""
        return _array([op for op in self._ops if exchanges or op.kind != Kind.EXCHANGE])

    def _add(
        self,
        kind: Kind,
        flags: Flag = Flag.NONE,
        *,
        n: tuple[int, ...] = (),
        p: tuple[int, ...] = (),
        eps: float = 0.0,
        type: int = 0,
    ) -> None:
        op = Op(kind=kind, flags=flags, eps=eps, type=type)
        op.n[: len(n)] = n
        op.p[: len(p)] = p
        self._ops.append(op)


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _array(ops: list[Op]) -> ctypes.Array[Op]:
    return (Op * len(ops))(*ops)
