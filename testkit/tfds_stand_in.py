"""Write a small data set in place of TFDS's prepared `wiki40b/ja`.

The real TFDS builder reads it. Layout and metadata follow TFDS's "external format"
(`tfds.folder_dataset.write_metadata`). Names, features and version are those of `wiki40b/ja` 1.3.0.
"""

import json
from pathlib import Path

NAME, CONFIG, VERSION = "wiki40b", "ja", "1.3.0"
SHARD_SIZE = 7  # maximum number of documents in a shard


def write(data_dir, documents, split_sizes):
    """Divide documents into splits of the given sizes, and write them below `data_dir`."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    directory = Path(data_dir, NAME, CONFIG, VERSION)
    directory.mkdir(parents=True)
    text = tfds.features.Text
    features = tfds.features.FeaturesDict(
        {"wikidata_id": text(), "text": text(), "version_id": text()}
    )
    template = tfds.core.ShardedFileTemplate(
        template="{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        dataset_name=NAME,
        data_dir=str(directory),
        filetype_suffix="tfrecord",
    )
    records = iter(
        features.serialize_example({"wikidata_id": "Q1", "text": document, "version_id": "0"})
        for document in documents
    )
    infos = []
    for split, size in split_sizes.items():
        lengths = [min(SHARD_SIZE, size - at) for at in range(0, size, SHARD_SIZE)]
        num_bytes = 0
        for shard, length in enumerate(lengths):
            name = f"{NAME}-{split}.tfrecord-{shard:05d}-of-{len(lengths):05d}"
            with tf.io.TFRecordWriter(str(directory / name)) as writer:
                for _ in range(length):
                    record = next(records)
                    writer.write(record)
                    num_bytes += len(record)
        infos.append(tfds.core.SplitInfo(split, lengths, num_bytes, template))
    about = {"features": features, "split_infos": infos, "version": VERSION}
    tfds.folder_dataset.write_metadata(data_dir=str(directory), check_data=False, **about)
    # `write_metadata` does not write the name of the configuration, which the builder requires.
    path = directory / "dataset_info.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "configName": CONFIG}))
