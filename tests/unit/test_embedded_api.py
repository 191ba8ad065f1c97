import json
from pathlib import Path
from typing import Any

import pytest
from fakes.tiny_checkpoint import TINY

from pytest_qperf.checkpoint.tokenizer_file import ByteTokenizer, read_tokenizer, render_tokenizer
from pytest_qperf.embedded.api import ApiError, ServedModel, choice, completion, usage


@pytest.fixture
def served(tmp_path: Path) -> ServedModel:
    path = tmp_path / "tokenizer.json"
    path.write_text(render_tokenizer(TINY))
    return ServedModel("tiny", TINY, read_tokenizer(path))


def _refusal(served: ServedModel, **body: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        served.generation_request("r", served.parse(json.dumps(body).encode()))
    return caught.value


@pytest.mark.parametrize("prompt", [[104, 105], [[104, 105]], "hi"])
def test_a_prompt_is_ids_one_list_of_ids_or_text(served: ServedModel, prompt: object) -> None:
    body = served.parse(json.dumps({"prompt": prompt}).encode())
    assert served.generation_request("r", body).prompt_ids == (104, 105)


def test_what_is_not_said_is_openais_default(served: ServedModel) -> None:
    request = served.generation_request("r", served.parse(b'{"prompt": [1]}'))
    assert (request.max_tokens, request.min_tokens, request.ignore_eos) == (16, 0, False)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "prompt: Field required"),
        ({"prompt": []}, "prompt: expected at least one token, got none"),
        ({"prompt": ""}, "prompt: expected at least one token, got none"),
        ({"prompt": [[]]}, "prompt: expected at least one token, got none"),
        ({"prompt": [[1], [2]]}, "prompt: expected one prompt a request, got 2"),
        ({"prompt": [1, "a"]}, "prompt: expected text, a list of token ids or a list of one"),
        ({"prompt": [True]}, "prompt: expected text, a list of token ids or a list of one"),
        ({"prompt": [512]}, "prompt: expected token ids from 0 to 511, got 512"),
        ({"prompt": [-1]}, "prompt: expected token ids from 0 to 511, got -1"),
        ({"prompt": [1] * 241}, "prompt: expected at most 256 tokens with max_tokens, got 241"),
        ({"prompt": [1], "max_tokens": 0}, "max_tokens: Input should be greater than or equal"),
        ({"prompt": [1], "max_tokens": "8"}, "max_tokens: Input should be a valid integer"),
        ({"prompt": [1], "min_tokens": 17}, "min_tokens: expected at most max_tokens 16, got 17"),
        ({"prompt": [1], "temperature": 0.7}, r"temperature: expected 0 \(this engine is greedy"),
        ({"prompt": [1], "top_p": 0.9}, "top_p: expected no such parameter"),
        ({"prompt": [1], "stream_options": {}}, "stream_options: expected 'stream': true with it"),
    ],
)
def test_a_wrong_request_is_refused_with_400(
    served: ServedModel, body: dict[str, Any], message: str
) -> None:
    error = _refusal(served, **body)
    assert error.status == 400
    with pytest.raises(ApiError, match=message):
        raise error


def test_all_problems_of_a_request_are_in_one_message(served: ServedModel) -> None:
    error = _refusal(served, prompt=[1], max_tokens=0, n=2)
    assert str(error).count(";") == 2  # between the problems, and inside the one about `n`


def test_a_body_that_is_not_json_is_refused(served: ServedModel) -> None:
    with pytest.raises(ApiError, match="Invalid JSON"):
        served.parse(b"{")


def test_another_model_is_a_404(served: ServedModel) -> None:
    error = _refusal(served, prompt=[1], model="other")
    assert error.status == 404
    assert str(error) == "model: expected 'tiny', got 'other'"


def test_text_is_refused_where_the_tokenizer_has_merges() -> None:
    served = ServedModel("real", TINY, ByteTokenizer({0: b"a"}, has_merges=True))
    assert "prompt: expected token ids" in str(_refusal(served, prompt="a"))


def test_an_error_has_the_shape_openai_clients_read() -> None:
    assert ApiError(400, "x: expected y").body() == {
        "error": {
            "message": "x: expected y",
            "type": "invalid_request_error",
            "param": None,
            "code": 400,
        }
    }


def test_usage_adds_up_and_names_no_cached_token() -> None:
    assert usage(3, 4) == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_token_ids_and_usage_are_left_out_unless_asked_for() -> None:
    plain = choice("a", finish_reason=None, token_ids=None)
    assert "token_ids" not in plain
    assert "usage" not in completion("r", "m", choices=[plain], counts=None)
    assert choice("a", finish_reason="stop", token_ids=[1])["token_ids"] == [1]
