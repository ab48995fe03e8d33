"""Reads rows and columns of a canonical tensor out of the stored tensor that it is a part of."""

import torch
from torch import Tensor

from services.worker.engine.checkpoint.codes.encoded_matrix import EncodedMatrix
from services.worker.engine.checkpoint.names.tensor_view import TensorView
from services.worker.engine.checkpoint.slice_reader import OpenTensor, SliceReader, dtype_of, halve_pairs


def read_view(
    reader: SliceReader, tensor: OpenTensor, view: TensorView, out: Tensor, *, rows: range, columns: range
) -> None:
    """Reads a slice into a contiguous tensor, converted to its type.

    Only the bytes of the slice are read, but where single rows alternate: there those between are read too.

    Args:
        view: The part of it that is read.
        out: [len(rows), len(columns)].
        rows: Of the view, consecutive; those of whole heads, if rows are paired.
        columns: Of the view, consecutive.

    Raises:
        ModelError: The file cannot be read, or has become shorter.
    """
    if not rows:
        return
    if view.transposed:
        _read_transposed(reader, tensor, view, out, rows=rows, columns=columns)
    elif view.width == 1 and view.stride > 1:
        span = range(view.stored_row(rows[0]), view.stored_row(rows[-1]) + 1)
        buffer = torch.empty(len(span), len(columns), dtype=dtype_of(tensor.stored))
        reader.read(tensor, buffer, span, columns)
        out.copy_(buffer[:: view.stride])
    else:
        begin = 0
        for run in view.runs(rows):
            reader.read(tensor, out[begin : begin + len(run)], run, columns)
            begin += len(run)
    if view.pairs is not None:
        halve_pairs(out, rows, view.pairs)


def read_view_codes(
    reader: SliceReader, tensor: OpenTensor, view: TensorView, *, rows: range, columns: range
) -> EncodedMatrix | None:
    """As `read_view`, as codes; None where the slice cannot be held so."""
    if not rows or view.transposed:
        return None
    if view.width == 1 and view.stride > 1:  # single rows alternate: those between are read too
        span = range(view.stored_row(rows[0]), view.stored_row(rows[-1]) + 1)
        whole = reader.read_codes(tensor, span, columns)
        return None if whole is None else whole.rows(slice(None, None, view.stride))
    parts = [reader.read_codes(tensor, run, columns) for run in view.runs(rows)]
    found = [part for part in parts if part is not None]
    if len(found) < len(parts):
        return None
    matrix = EncodedMatrix.joined(found)
    if view.pairs is None:
        return matrix
    order = torch.arange(len(rows), dtype=torch.float32).view(-1, 1)
    halve_pairs(order, rows, view.pairs)
    return matrix.rows(order.view(-1).long())


def _read_transposed(
    reader: SliceReader, tensor: OpenTensor, view: TensorView, out: Tensor, *, rows: range, columns: range
) -> None:
    """The stored rows are the columns, of which those between the first and last wanted row are read."""
    span = range(view.stored_row(rows[0]), view.stored_row(rows[-1]) + 1)
    buffer = torch.empty(len(columns), len(span), dtype=dtype_of(tensor.stored))
    reader.read(tensor, buffer, columns, span)
    positions = torch.tensor([view.stored_row(row) - span.start for row in rows])
    out.copy_(buffer.T if len(span) == len(rows) else buffer.T[positions])
