"""Stand-in for TFDS's prepared `wiki40b/ja`, which the real TFDS builder reads.

Layout and metadata follow TFDS's "external format" (`tfds.folder_dataset.write_metadata`); names,
features and version are those of TFDS's own `wiki40b/ja` 1.3.0.
"""

import json
from pathlib import Path

NAME, CONFIG, VERSION = "wiki40b", "ja", "1.3.0"
SHARD_SIZE = 7  # in documents


def write(data_dir, documents, split_sizes):
    """Write documents under `data_dir` as splits of the given sizes, one after the other."""
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
    # `write_metadata` knows no configurations; a builder asked for a version looks for one.
    path = directory / "dataset_info.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "configName": CONFIG}))
