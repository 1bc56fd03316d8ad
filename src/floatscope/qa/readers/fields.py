"""Strict reading of a JSON record's fields: an error is a sentence. Which fields exist is left to shapes."""

from collections.abc import Mapping
from typing import Any

Data = Mapping[str, Any]

ID_NAMES = ("id", "_id", "question_id", "QuestionId", "query_id", "qid")


class WrongField(ValueError):
    """What is wrong with a record's fields, without its place in the file."""


class Noted(dict[str, Any]):
    """A record that notes which of its fields were asked for."""

    def __init__(self, data: Data) -> None:
        super().__init__(data)
        self.asked: set[str] = set(ID_NAMES)

    def __getitem__(self, name: str) -> Any:
        self.asked.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """As of any dict."""
        self.asked.add(name)
        return super().get(name, default)

    @property
    def unread(self) -> list[str]:
        """The other fields that hold a text, a list or an object."""
        return [
            name
            for name, value in self.items()
            if name not in self.asked and value and isinstance(value, str | list | dict)
        ]


def identity(data: Data) -> str | None:
    """The record's own id under any of the names in use, or None."""
    for name in ID_NAMES:
        value = data.get(name)
        if isinstance(value, (str, int)) and not isinstance(value, bool) and str(value).strip():
            return str(value)
    return None


def first_of(data: Data, *names: str) -> Any:
    """The value of the first of the names that the record has, or None."""
    return next((data[name] for name in names if data.get(name) is not None), None)


def title_of(data: Data, *names: str) -> str:
    """A text, empty where there is none."""
    value = first_of(data, *names)
    if value is not None and not isinstance(value, str):
        raise WrongField(f"its field {_either(names)} is a {type(value).__name__}, not a text")
    return (value or "").strip()


def text_of(data: Data, *names: str) -> str:
    """A text that must be there and not blank."""
    text = title_of(data, *names)
    if not text:
        missing = first_of(data, *names) is None
        raise WrongField(f"it has no field {_either(names)}" if missing else f"its field {_either(names)} is blank")
    return text


def rows_of(data: Data, *names: str) -> list[dict[str, Any]]:
    """A list of objects, or the columns that the hub makes of one: {"title": [...], "text": [...]}."""
    value = first_of(data, *names)
    if value is None:
        return []
    if isinstance(value, dict):
        lists = {name: column for name, column in value.items() if isinstance(column, list)}
        if not lists or len({len(column) for column in lists.values()}) != 1:
            raise WrongField(f"its field {_either(names)} is neither a list of objects nor equal columns")
        return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise WrongField(f"its field {_either(names)} is not a list of objects")
    return value


def answers_of(values: Any) -> tuple[str, ...]:
    """Every answer once, in order, from a text, a number, or a list of these or of {"answer"|"text": ...}."""
    answers: dict[str, None] = {}
    for value in values if isinstance(values, (list, tuple)) else [values]:
        if isinstance(value, Mapping):
            value = first_of(value, "answer", "text")
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            value = str(value)
        if isinstance(value, str) and value.strip():
            answers[value.strip()] = None
        elif value is not None and not isinstance(value, str):
            raise WrongField(f"an answer is a {type(value).__name__}, not a text")
    return tuple(answers)


def some_answers(data: Data, *names: str) -> tuple[str, ...]:
    """The answers of a field, at least one."""
    answers = answers_of(first_of(data, *names))
    if not answers:
        raise WrongField(f"it has no answer in {_either(names)}")
    return answers


def flag_of(data: Data, *names: str) -> bool:
    """A yes or no, false where it is missing; 0 and 1 count as well."""
    value = first_of(data, *names)
    if value is None:
        return False
    if value in (0, 1):
        return bool(value)
    raise WrongField(f"its field {_either(names)} is {value!r}, not true or false")


def _either(names: tuple[str, ...]) -> str:
    return " or ".join(f"`{name}`" for name in names)
