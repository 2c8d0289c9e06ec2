"""Very many images in shards: folders, tar files, Parquet files and arrays, each summed wherever there is room."""

from adagauss.shards.finding import Shard, find_shards
from adagauss.shards.gathering import Gathering, gather
from adagauss.shards.summing import sum_shard

__all__ = ["Gathering", "Shard", "find_shards", "gather", "sum_shard"]
