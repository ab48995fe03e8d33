"""The settings of a group in front of a server: what they need, and where its key comes from."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from cli.stack.model_dir import demo_model
from services.worker.__main__ import adapter_reader, leader_options, make_model
from services.worker.guests.engine import GuestEngine
from services.worker.guests.remote_settings import RemoteSettings, read_key
from services.worker.make_engines import make_engine_without_ranks
from services.worker.settings import WorkerSettings
from shared.errors import InvalidRequest

SERVER = "http://10.0.0.5:8000"


def test_a_remote_engine_needs_a_server_and_a_tokenizer() -> None:
    with pytest.raises(ValidationError, match="needs the model's tokenizer and chat template"):
        WorkerSettings(engine="remote", remote_url=SERVER)
    with pytest.raises(ValidationError, match="needs the address of a server"):
        WorkerSettings(engine="remote", model=str(demo_model()), remote_url="")


def test_such_a_group_has_no_ranks_shares_no_prefixes_and_guesses_no_tokens() -> None:
    settings = WorkerSettings(
        engine="remote", model=str(demo_model()), remote_url=SERVER, remote_hosts="10.0.0.5, *.internal"
    )
    engine, _ = make_engine_without_ranks(settings, make_model(settings))
    assert isinstance(engine, GuestEngine)
    options = leader_options(settings)
    assert (options.prefix_sharing, options.steps.draft_tokens) == ("off", 0)
    assert adapter_reader(settings) is None


def test_the_servers_name_of_the_model_is_the_served_one_unless_it_is_given() -> None:
    assert RemoteSettings(remote_url=SERVER).options("demo").model == "demo"
    assert RemoteSettings(remote_url=SERVER, remote_model="big").options("demo").model == "big"
    hosts = RemoteSettings(remote_url=SERVER, remote_hosts="a, *.b ,").options("demo").allowed_hosts
    assert hosts == ("a", "*.b")


def test_a_server_that_is_not_allowed_is_refused() -> None:
    settings = WorkerSettings(
        engine="remote", model=str(demo_model()), remote_url=SERVER, remote_hosts="*.internal"
    )
    with pytest.raises(InvalidRequest, match=r"10\.0\.0\.5 is not one of the allowed hosts"):
        make_engine_without_ranks(settings, make_model(settings))


def test_a_key_is_read_from_its_file_and_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("secret-1\n")
    options = RemoteSettings(remote_url=SERVER, remote_key_file=str(file)).options("demo")
    assert options.api_key == "secret-1"
    assert "secret-1" not in repr(options)
    assert read_key("") == ""


@pytest.mark.parametrize("content", [b"", b"\n", b"two keys", b"one\ntwo", b"\xff\xfe"])
def test_a_file_that_holds_no_key_is_refused_without_its_content(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    with pytest.raises(InvalidRequest, match="RYZ_REMOTE_KEY_FILE") as refused:
        read_key(str(file))
    assert "two" not in refused.value.message
    with pytest.raises(InvalidRequest, match="cannot be read"):
        read_key(str(tmp_path / "none"))
