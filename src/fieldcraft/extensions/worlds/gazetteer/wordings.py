"""Wordings of the questions of the gazetteer: eight of each, the last two only for evaluations."""

from __future__ import annotations

NUM_TRAINED_WORDINGS = 6  # per question; the other wordings occur only in evaluations

# Wordings of the last fact of a chain; {of} is a place, or a phrase that leads to one.
QUESTION_WORDINGS: dict[str, tuple[str, ...]] = {
    "country": (
        "In which country is {of}?",
        "Which country does {of} belong to?",
        "What country is {of} in?",
        "{Of} is in which country?",
        "Name the country in which {of} lies.",
        "To which country does {of} belong?",
        "If you travel to {of}, which country do you visit?",
        "Where is {of}? Give the country.",
    ),
    "region": (
        "In which region is {of}?",
        "Which region does {of} belong to?",
        "What state or region is {of} in?",
        "{Of} is in which region?",
        "Name the region in which {of} lies.",
        "To which state or region does {of} belong?",
        "Which region has {of} in it?",
        "Where is {of}? Give the state or region.",
    ),
    "capital": (
        "What is the capital of {of}?",
        "Which city is the capital of {of}?",
        "Name the capital of {of}.",
        "What is the name of the capital of {of}?",
        "The capital of {of} is which city?",
        "What is the capital city of {of}?",
        "From which city is {of} governed?",
        "Where does the government of {of} sit?",
    ),
    "largest_city": (
        "What is the largest city of {of}?",
        "Which city is the largest in {of}?",
        "Name the largest city of {of}.",
        "Which city has the most inhabitants in {of}?",
        "The largest city of {of} is which one?",
        "What is the biggest city in {of}?",
        "In which city of {of} do the most people live?",
        "Of all cities in {of}, which one is the largest?",
    ),
    "continent": (
        "On which continent is {of}?",
        "Which continent does {of} belong to?",
        "What continent is {of} in?",
        "{Of} is on which continent?",
        "Name the continent on which {of} lies.",
        "To which continent does {of} belong?",
        "Give the continent: which one is {of} a part of?",
        "Where is {of}? Give the continent.",
    ),
    "currency": (
        "What is the currency of {of}?",
        "Which currency is used in {of}?",
        "Name the currency of {of}.",
        "What currency do people pay with in {of}?",
        "The currency of {of} is which one?",
        "What money is used in {of}?",
        "With which currency do you pay in {of}?",
        "In which currency are prices given in {of}?",
    ),
    "language": (
        "What is an official language of {of}?",
        "Which language is official in {of}?",
        "Name an official language of {of}.",
        "What language is official in {of}?",
        "An official language of {of} is which one?",
        "Which official language does {of} have?",
        "In which language are the laws of {of} written?",
        "What language does the government of {of} use?",
    ),
    "time_zone": (
        "What is the time zone of {of}?",
        "Which time zone is used in {of}?",
        "Name the time zone of {of}.",
        "In which time zone is {of}?",
        "The time zone of {of} is which one?",
        "What time zone does {of} use?",
        "Which time zone do clocks in {of} follow?",
        "By which time zone are clocks set in {of}?",
    ),
}

# Phrases that lead from a place to the next one of a chain.
PHRASE_WORDINGS: dict[str, tuple[str, ...]] = {
    "country": (
        "the country of {of}",
        "the country where {of} lies",
        "the country that contains {of}",
        "the country around {of}",
    ),
    "region": (
        "the region of {of}",
        "the region where {of} lies",
        "the region that contains {of}",
        "the region around {of}",
    ),
    "capital": ("the capital of {of}", "the capital city of {of}"),
    "largest_city": ("the largest city of {of}", "the biggest city of {of}"),
}

COMPARISON_WORDINGS: dict[str, tuple[str, ...]] = {
    "population": (
        "Which has more inhabitants, {first} or {second}?",
        "Do more people live in {first} or in {second}?",
        "Which one has the larger population: {first} or {second}?",
        "Of {first} and {second}, which has more inhabitants?",
        "Where do more people live, in {first} or in {second}?",
        "Name the one with more inhabitants: {first} or {second}.",
        "Is the population of {first} or that of {second} larger?",
        "{First} and {second}: which of them has more people?",
    ),
    "area": (
        "Which is larger in area, {first} or {second}?",
        "Which one has the larger area: {first} or {second}?",
        "Of {first} and {second}, which covers more land?",
        "Which covers more square kilometres, {first} or {second}?",
        "Name the one with the larger area: {first} or {second}.",
        "Is {first} or {second} larger in area?",
        "Is the area of {first} or that of {second} larger?",
        "{First} and {second}: which of them takes up more land?",
    ),
}
COUNT_WORDINGS = (
    "How many countries border {of}?",
    "How many neighbouring countries does {of} have?",
    "What is the number of countries that border {of}?",
    "With how many countries does {of} share a land border?",
    "How many countries does {of} border?",
    "Give the number of countries that {of} borders.",
    "Count the countries that border {of}: how many are there?",
    "How many neighbours does {of} have?",
)
COMMON_NEIGHBOUR_WORDINGS = (
    "Which country borders both {first} and {second}?",
    "Name the country that borders both {first} and {second}.",
    "Which country has borders with {first} and with {second}?",
    "What country is a neighbour of both {first} and {second}?",
    "{First} and {second} both border which country?",
    "Which country do {first} and {second} both border?",
    "Which country lies next to both {first} and {second}?",
    "What is the one country that {first} and {second} both have a border with?",
)


def fill_wording(template: str, **names: str) -> str:
    """Fill names into a wording; a name at its start gets a capital letter."""
    capitals = {name.capitalize(): text[:1].upper() + text[1:] for name, text in names.items()}
    return template.format(**names, **capitals)
