"""Types in plain words."""

import pytest

from routing_lightning.kinds import in_words, none_of, split_types


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("<class 'int'>", ["a whole number"]),
        ("<class 'bool'>", ["true", "false"]),
        ("<class 'NoneType'>", ["null"]),
        ("typing.Literal['a', 3]", ["a", "3"]),
        ("list[int]", ["a list of whole numbers"]),
        ("list[list[float]]", ["a list of lists of numbers"]),
        ("list[int | str]", ["a list of int | str"]),
        ("list[lightning.pytorch.callbacks.Callback]", ["a list of Callback"]),
        ("<class 'torch.nn.modules.module.Module'>", []),
    ],
)
def test_types_have_plain_words(kind, words):
    assert in_words(kind) == words


def test_types_are_split_between_the_outermost_commas():
    assert split_types("typing.Literal['a', 'b'], dict[str, int], <class 'int'>") == [
        "typing.Literal['a', 'b']",
        "dict[str, int]",
        "<class 'int'>",
    ]


def test_a_value_of_the_wrong_type_is_named_with_what_is_allowed():
    assert none_of("x", ["a whole number"]) == "x is no whole number"
    assert none_of("x", ["a whole number", "a number", "null", "null"]) == "x is none of a number, null"
