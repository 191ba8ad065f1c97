"""A byte-level tokenizer.json: token b is the byte b, token i from 256 on is the text ``w<i>``.

Byte-level BPE without merges, because transformers 5 loads every ``qwen2`` folder as byte-level
BPE whatever its tokenizer_config.json says: a word-level file would encode each text to nothing.
"""

import codecs
import json
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_qperf.checkpoint.shapes import Qwen2Shape
from pytest_qperf.core.errors import BuildError

NUM_BYTES = 256
_SPLIT_PATTERN = r"\S+|\s+"


def _byte_symbols() -> list[str]:
    """Return the character that stands for each byte in byte-level BPE.

    Printable bytes stand for themselves, the others are numbered from U+0100 on. Source: Radford
    et al. 2019 (GPT-2), as read by the tokenizers library.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(NUM_BYTES)]


@dataclass(frozen=True, slots=True)
class ByteTokenizer:
    """The bytes of every token; only a tokenizer without merges encodes text here."""

    token_bytes: dict[int, bytes]
    has_merges: bool

    def encode(self, text: str) -> list[int]:
        """Return one token id a byte of the NFC form of ``text``; ValueError if it has merges."""
        if self.has_merges:
            raise ValueError(
                "expected token ids: this checkpoint's tokenizer has merges, which only its own "
                "library applies"
            )
        ids = {content: id_ for id_, content in self.token_bytes.items() if len(content) == 1}
        data = unicodedata.normalize("NFC", text).encode()
        return [ids[data[at : at + 1]] for at in range(len(data))]


class StreamDecoder:
    """Turns token ids into text, one at a time; text waits until its bytes are complete UTF-8."""

    def __init__(self, tokenizer: ByteTokenizer) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token_id: int) -> str:
        """Return the text this token completes; a token without text gives none."""
        return self._decoder.decode(self._token_bytes.get(token_id, b""))

    def finish(self) -> str:
        """Return what is left: U+FFFD for an incomplete character."""
        return self._decoder.decode(b"", final=True)


def render_tokenizer(shape: Qwen2Shape) -> str:
    """Return the tokenizer.json text, as the tokenizers library writes it."""
    symbols = _byte_symbols()
    symbols += [f"w{token_id}" for token_id in range(NUM_BYTES, shape.vocab_size)]
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    split = {
        "type": "Split",
        "pattern": {"Regex": _SPLIT_PATTERN},
        "behavior": "Isolated",
        "invert": False,
    }
    content: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {symbol: token_id for token_id, symbol in enumerate(symbols)},
            "merges": [],
        },
    }
    return json.dumps(content, separators=(",", ":"))


def render_tokenizer_config(shape: Qwen2Shape) -> str:
    """Return the tokenizer_config.json text; every special token is one of the vocabulary."""
    content: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": shape.max_position_embeddings,
        "bos_token": None,
        "eos_token": f"w{shape.eos_token_ids[0]}",
        "pad_token": f"w{shape.eos_token_ids[-1]}",
        "unk_token": f"w{shape.eos_token_ids[-1]}",
    }
    return json.dumps(content, indent=2) + "\n"


def read_tokenizer(path: Path) -> ByteTokenizer:
    """Return the tokens of a tokenizer.json; raise BuildError unless it is byte-level BPE."""
    try:
        content: Any = json.loads(path.read_bytes())
        model, added = content["model"], content["added_tokens"]
        kind, vocab = model["type"], model.get("vocab", {})
        special = {token["id"]: token["content"].encode() for token in added}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BuildError(f"{path}: expected a readable tokenizer.json, got {error!r}") from error
    bytes_by_symbol = {symbol: bytes([byte]) for byte, symbol in enumerate(_byte_symbols())}
    if kind != "BPE" or not bytes_by_symbol.keys() <= vocab.keys():
        raise BuildError(f"{path}: expected byte-level BPE, got {kind} without the byte tokens")
    tokens = {
        token_id: b"".join(bytes_by_symbol[symbol] for symbol in word)
        for word, token_id in vocab.items()
    }
    return ByteTokenizer(token_bytes=tokens | special, has_merges=bool(model.get("merges")))
