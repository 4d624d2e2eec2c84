"""Routes as Arrow tables and Parquet files, for pandas, polars, DuckDB and whatever else reads them.

    table = moetape.arrow.to_arrow([first, second], sequence_ids=["a", "b"])
    moetape.arrow.write_parquet("routes.parquet", [first, second], sequence_ids=["a", "b"])
    assert moetape.arrow.read_parquet("routes.parquet") == [first, second]

One row a token:

    sequence     int32, the number of its Routes, from 0
    sequence_id  string, where ids are given
    position     int64
    token        int32, null where not known
    version      int32, null where not known
    missing      string, why the row is missing (see moetape.REASONS); null = valid
    ids          fixed_size_list<fixed_size_list<uint8 or uint16>[top_k]>[layers]; null = missing

ids[i] belongs to layer spec.layers[i]. The spec stands in the schema's metadata, as JSON under "moetape", so
that equal Routes come back. Needs pyarrow (pip install 'moetape[arrow]'), which is imported when a function
is called; without it they raise UnsupportedError. Any thread.
"""

from moetape.arrow.files import read_parquet, write_parquet
from moetape.arrow.reading import from_arrow, sequence_ids
from moetape.arrow.writing import to_arrow

__all__ = ["from_arrow", "read_parquet", "sequence_ids", "to_arrow", "write_parquet"]
