"""The words of the knowledge world's names, by entity type. Which names exist in a split is left to `world`."""

from dataclasses import dataclass

FIRST = (
    "Ada Basil Cara Dana Elias Enzo Felix Gideon Hector Ida Iris Judith Klaus Lidia Lucia Mara Nadia Olga "
    "Paula Rafael Rosa Stella Tilda Viktor"
).split()
LAST = (
    "Abel Arden Bellini Calder Corso Dorn Ekholm Fischer Garrick Hale Ibsen Kessler Larsen Lorenz Moreau "
    "Nolan Orlov Quist Ritter Santos Strand Ullman Voss Winter"
).split()
COMPANY = (
    "Acron Amberon Axion Calyx Corvus Daltek Elmora Evanta Ferrox Halcyon Hydrax Ionis Kronos Lyrion "
    "Meridia Octavo Orbis Pinnar Rhodia Solvia Tavros Valtor Vortan Xanto"
).split()
COMPANY_KIND = "Labs Works Mills Foods Motors Bank Lines Group Studios Steel".split()
CITY = (
    "Alden Ardmore Balsa Birch Carden Corbin Dorset Elgin Farrow Galen Gorse Harrow Ivory Kelby Lark "
    "Marsh Napier Oakley Penrose Raven Selby Thistle Varley Whitby"
).split()
CITY_KIND = "Port Lake Fort Mount New North South East West Saint".split()
COUNTRY = (
    "Adria Belmar Drenia Estoria Galdova Harvia Jorvik Kaldonia Morvania Nordania Pellonia Quillia "
    "Sarmatia Talvia Velda Westria Yavaria Zandia Brevia Corvania Elbonia Florin Hestria Ivaria"
).split()
COUNTRY_KIND = "Kingdom Republic Union Duchy League State".split()
ADJECTIVE = (
    "Silver Golden Silent Hidden Burning Hollow Ancient Bitter Scarlet Wandering Secret Shining Lonely "
    "Quiet Endless Marble Copper Winding Stolen Salted"
).split()
NOUN = (
    "Garden River Mirror Harbor Window Lantern Island Orchid Castle Compass Kitchen Staircase Meadow "
    "Shadow Violin Candle Desert Railway Winterland Engine Festival Library Painter Sailor"
).split()
MONTH = "January February March April May June July August September October November December".split()
YEARS = [str(year) for year in range(1950, 1980)]


@dataclass(frozen=True)
class NameKind:
    """How names of one entity type are made: `pattern` over a key word and a companion word.

    The key word tells entities of one context apart: two of them never share it, unless a near name is asked for.
    """

    pattern: str
    keys: tuple[str, ...]
    companions: tuple[str, ...]

    def name(self, key: str, companion: str) -> str:
        return self.pattern.format(key=key, companion=companion)


NAME_KINDS: dict[str, NameKind] = {
    "person": NameKind("{companion} {key}", tuple(LAST), tuple(FIRST)),
    "company": NameKind("{key} {companion}", tuple(COMPANY), tuple(COMPANY_KIND)),
    "city": NameKind("{companion} {key}", tuple(CITY), tuple(CITY_KIND)),
    "country": NameKind("{companion} of {key}", tuple(COUNTRY), tuple(COUNTRY_KIND)),
    "work": NameKind("The {companion} {key}", tuple(NOUN), tuple(ADJECTIVE)),
    "date": NameKind("{companion} {key}", tuple(YEARS), tuple(MONTH)),
}
