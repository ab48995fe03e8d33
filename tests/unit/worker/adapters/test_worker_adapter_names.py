"""Names of KV blocks have the adapter in them, however they are made."""

from services.worker.domain.blocks.names import BlockNames
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.rank_protocol.engine_sampling import EngineSampling
from shared.codec import pack_tokens
from tests.kits.worker.adapters.simulation import adapter


def test_adapters_and_the_base_have_names_of_their_own() -> None:
    names, tokens = BlockNames("weights"), list(range(40))
    found: dict[bytes, str] = {}
    for one in (None, adapter(1), adapter(2)):
        fingerprint = "" if one is None else one.fingerprint
        sequence = Sequence("r", 0, tokens, len(tokens), 1, EngineSampling(), tenant="t", adapter=one)
        of_sequence = names.of(sequence)
        assert len(of_sequence) == 2
        assert of_sequence == names.of_tokens(tokens, "t", fingerprint)
        assert of_sequence == list(names.of_packed(pack_tokens(tokens), "t", fingerprint))
        assert not found.keys() & set(of_sequence)
        found |= dict.fromkeys(of_sequence, fingerprint)


def test_names_of_the_base_are_as_before() -> None:
    names = BlockNames("weights", "fp32")
    assert names.of_tokens(list(range(16)), "t")[0].hex() == "0dcc210af6b870f10d394f7ae600d914"
