"""How values are read from an adapter's files, and what its fingerprint is made of."""

import threading
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from services.worker.adapters.adapter import read_adapter
from services.worker.adapters.fingerprint import FINGERPRINT_CHARS, Fingerprint
from tests.kits.adapters.handmade import (
    CONFIG,
    QUERIES,
    WEIGHTS,
    demo_base,
    demo_tensors,
    refusal,
    write_peft,
)


def test_a_fingerprint_is_the_digest_of_names_scales_types_and_values(tmp_path: Path) -> None:
    """Fingerprints that are registered stay valid."""
    tensors, digest = demo_tensors(), sha256()
    for module in ("model.layers.0.self_attn.q_proj", "model.layers.3.mlp.down_proj"):
        digest.update(f"{module}\0{CONFIG['lora_alpha'] / CONFIG['r']!r}\0".encode())
        for side in "AB":
            values = tensors[f"base_model.model.{module}.lora_{side}.weight"]
            digest.update(f"F32 {values.shape}\0".encode() + values.tobytes())
    found = read_adapter(write_peft(tmp_path / "a"), demo_base())
    assert found.fingerprint == digest.hexdigest()[:FINGERPRINT_CHARS]


def test_pieces_are_hashed_in_their_order() -> None:
    pieces = [bytes([number]) * 5000 for number in range(200)]
    with Fingerprint() as fingerprint:
        for piece in pieces:
            fingerprint.add(piece)
        fingerprint.add(np.arange(3000, dtype=np.uint8))
        found = fingerprint.finish()
    wanted = sha256(b"".join(pieces) + np.arange(3000, dtype=np.uint8).tobytes()).hexdigest()
    assert found == wanted[:FINGERPRINT_CHARS]


def test_a_refusal_leaves_no_thread(tmp_path: Path) -> None:
    tensors = demo_tensors()
    tensors[f"{QUERIES}.lora_B.weight"][3, 1] = np.nan
    assert "no finite numbers" in refusal(write_peft(tmp_path / "a", tensors))
    assert not [one for one in threading.enumerate() if one.name == "adapter-hash"]


def test_halves_have_the_values_of_their_type(tmp_path: Path) -> None:
    plain = {name: torch.from_numpy(values) for name, values in demo_tensors().items()}
    for kind in (torch.bfloat16, torch.float16):
        directory = write_peft(tmp_path / str(kind))
        save_file({name: values.to(kind) for name, values in plain.items()}, directory / WEIGHTS)
        found = read_adapter(directory, demo_base()).matrices[0, "self_attn.q_proj"]
        scale = CONFIG["lora_alpha"] / CONFIG["r"]
        down, up = (plain[f"{QUERIES}.lora_{side}.weight"].to(kind).float() for side in "AB")
        np.testing.assert_array_equal(found.down, down.numpy())
        np.testing.assert_array_equal(found.up, (scale * up).numpy())
