import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_qperf.checkpoint.shapes import SHAPES
from pytest_qperf.checkpoint.tokenizer_file import (
    ByteTokenizer,
    StreamDecoder,
    read_tokenizer,
    render_tokenizer,
    render_tokenizer_config,
)
from pytest_qperf.core.errors import BuildError

TINY = SHAPES["qwen2-tiny"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ByteTokenizer:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(render_tokenizer(TINY))
    return read_tokenizer(path)


def _decode(tokenizer: ByteTokenizer, ids: list[int]) -> str:
    decoder = StreamDecoder(tokenizer)
    return "".join(decoder.feed(id_) for id_ in ids) + decoder.finish()


def test_a_text_is_one_token_a_byte(tokenizer: ByteTokenizer) -> None:
    assert tokenizer.encode("hé\n") == [104, 195, 169, 10]


def test_a_token_above_the_bytes_is_its_number(tokenizer: ByteTokenizer) -> None:
    assert _decode(tokenizer, [300, 104, 511]) == "w300hw511"


def test_a_character_appears_with_its_last_byte(tokenizer: ByteTokenizer) -> None:
    decoder = StreamDecoder(tokenizer)
    assert [decoder.feed(195), decoder.feed(169)] == ["", "é"]


def test_an_incomplete_character_ends_as_a_replacement_character(
    tokenizer: ByteTokenizer,
) -> None:
    assert _decode(tokenizer, [195]) == "\ufffd"


@given(text=st.text(alphabet=st.characters(codec="ascii"), max_size=50))
def test_text_survives_encoding_and_decoding(tokenizer: ByteTokenizer, text: str) -> None:
    assert _decode(tokenizer, tokenizer.encode(text)) == text


def test_every_token_of_the_vocabulary_has_its_own_id(tokenizer: ByteTokenizer) -> None:
    assert sorted(tokenizer.token_bytes) == list(range(TINY.vocab_size))


def test_special_tokens_are_of_the_vocabulary() -> None:
    vocab = json.loads(render_tokenizer(TINY))["model"]["vocab"]
    config = json.loads(render_tokenizer_config(TINY))
    assert vocab[config["eos_token"]] == TINY.eos_token_ids[0]
    assert config["pad_token"] in vocab
    assert config["unk_token"] in vocab


def test_added_tokens_of_a_real_tokenizer_are_decoded(tmp_path: Path) -> None:
    content = json.loads(render_tokenizer(TINY))
    content["added_tokens"] = [{"id": 512, "content": "<|im_end|>"}]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    assert _decode(read_tokenizer(path), [512]) == "<|im_end|>"


def test_a_tokenizer_with_merges_does_not_encode(tmp_path: Path) -> None:
    content = json.loads(render_tokenizer(TINY))
    content["model"]["merges"] = ["a b"]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"expected token ids: .* has merges"):
        read_tokenizer(path).encode("ab")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "expected a readable tokenizer.json"),
        ("[]", "expected a readable tokenizer.json"),
        (
            '{"added_tokens": [], "model": {"type": "WordLevel", "vocab": {"w0": 0}}}',
            "expected byte-level BPE, got WordLevel",
        ),
    ],
)
def test_another_tokenizer_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(text)
    with pytest.raises(BuildError, match=message):
        read_tokenizer(path)
