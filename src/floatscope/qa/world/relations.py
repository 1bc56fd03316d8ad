"""The relations of the knowledge world as data: who stands in them, how they are stated and asked. No randomness here.

To add a relation is to add a row; the tokenizer, the samples and the tests pick it up (shipped weights do not).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Relation:
    """`statements` are sentences about {s} (subject) and {o} (object); `questions` ask for {o}."""

    name: str
    subject: str
    object: str
    statements: tuple[str, ...]
    questions: tuple[str, ...]


@dataclass(frozen=True)
class Path:
    """Two relations in a row: the object of `first` (the bridge) is the subject of `second`."""

    first: str
    second: str
    questions: tuple[str, ...]


_RELATIONS = (
    Relation("birthplace", "person", "city",
             ("{s} was born in {o}.", "{s} comes from {o}.", "The birthplace of {s} is {o}."),
             ("Where was {s} born?", "What is the birthplace of {s}?")),
    Relation("birthdate", "person", "date",
             ("{s} was born in {o}.", "The birth date of {s} is {o}.", "{s} came into the world in {o}."),
             ("When was {s} born?", "What is the birth date of {s}?")),
    Relation("employer", "person", "company",
             ("{s} works for {o}.", "{s} is employed by {o}.", "The employer of {s} is {o}."),
             ("Which company employs {s}?", "What is the employer of {s}?")),
    Relation("founder", "company", "person",
             ("{s} was founded by {o}.", "The founder of {s} is {o}.", "{o} founded {s}."),
             ("Who founded {s}?", "Who is the founder of {s}?")),
    Relation("headquarters", "company", "city",
             ("{s} is based in {o}.", "{s} has its seat in {o}.", "The seat of {s} is {o}."),
             ("Where is {s} based?", "What is the seat of {s}?")),
    Relation("country", "city", "country",
             ("{s} lies in the {o}.", "{s} is a city of the {o}.", "{s} belongs to the {o}."),
             ("In which country is {s}?", "What is the country of {s}?")),
    Relation("mayor", "city", "person",
             ("The mayor of {s} is {o}.", "{s} is governed by {o}.", "{s} has {o} as its mayor."),
             ("Who is the mayor of {s}?", "Who governs {s}?")),
    Relation("capital", "country", "city",
             ("The capital of the {s} is {o}.", "The {s} is ruled from {o}.", "The {s} has its capital in {o}."),
             ("What is the capital of the {s}?", "Where is the capital of the {s}?")),
    Relation("author", "work", "person",
             ("{s} was written by {o}.", "The author of {s} is {o}.", "{o} wrote {s}."),
             ("Who wrote {s}?", "Who is the author of {s}?")),
    Relation("published", "work", "date",
             ("{s} was published in {o}.", "{s} appeared in {o}.", "The release date of {s} is {o}."),
             ("When was {s} published?", "What is the release date of {s}?")),
    Relation("masterpiece", "person", "work",
             ("{s} is known for {o}.", "The masterpiece of {s} is {o}.", "{s} became famous with {o}."),
             ("What is {s} known for?", "What is the masterpiece of {s}?")),
)  # fmt: skip
RELATIONS: dict[str, Relation] = {relation.name: relation for relation in _RELATIONS}

PATHS: tuple[Path, ...] = (
    Path("founder", "birthplace",
         ("Where was the founder of {s} born?", "What is the birthplace of the founder of {s}?")),
    Path("headquarters", "country",
         ("In which country is the seat of {s}?", "What is the country of the seat of {s}?")),
    Path("employer", "headquarters",
         ("Where is the employer of {s} based?", "What is the seat of the employer of {s}?")),
    Path("author", "employer",
         ("Which company employs the author of {s}?", "What is the employer of the author of {s}?")),
    Path("capital", "mayor",
         ("Who governs the capital of the {s}?", "Who is the mayor of the capital of the {s}?")),
    Path("mayor", "birthdate",
         ("When was the mayor of {s} born?", "What is the birth date of the mayor of {s}?")),
)  # fmt: skip

FILLERS: tuple[str, ...] = (
    "The archive was updated in the spring.",
    "Many visitors ask about it.",
    "Little else is on record.",
    "Several notes were lost over the years.",
    "This entry is often quoted, but seldom checked.",
    "A longer account can be read elsewhere.",
    "The details are kept in a small file.",
    "Some readers find this surprising.",
    "Nothing more was reported, as far as we know.",
    "Local papers mention it now and then.",
    "The entry was checked twice, and then signed.",
    "There are stories about it, old and new.",
)
UNANSWERABLE = "not stated"
