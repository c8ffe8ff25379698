#!/usr/bin/env bash
# Everything for pretraining, from nothing: download, sentences, shards, HDF5 for both phases (128 and 512 tokens).
#
#   bash bert/data/create_datasets_from_start.sh OUTPUT [INPUT]
#
# OUTPUT is where everything goes; a second call continues. INPUT is a folder of .txt files and MediaWiki dumps; without
# it Wikipedia and books are downloaded. Environment:
#   WIKI_LANGUAGE of the Wikipedia                   (en)
#   DATE          of its dump, YYYYMMDD or latest    (latest)
#   BOOKS         books to download, by name         (pg19; none = Wikipedia alone)
#   BOOKS_LIMIT   download at most this many books   (all)
#   SQUAD         1 = SQuAD too, for fine-tuning     (1 without INPUT)
#   DATASET       name of the data in file names     (wikipedia_<language>_<books>, or the name of INPUT)
#   VOCAB         BERT vocab.txt                     (trained on the text)
#   LOWER_CASE    1, or 0 for a cased vocabulary     (1)
#   DUPE_FACTOR   times the text is gone through     (5)
#   SHARDS        training shards                    (one per 32 MiB of text)
#   SEED          of the split, the cuts, the masks  (12345)
#   WORKERS       processes                          (all cores)
set -euo pipefail
script=$(realpath "$0")

if [[ $# -lt 1 || $# -gt 2 || ${1:-} == -* ]]; then
    sed -n '2,20s/^# \{0,1\}//p' "$script"
    [[ ${1:-} == -h || ${1:-} == --help ]] && exit 0 || exit 2
fi
output=$(realpath -m "$1")
input=${2:+$(realpath -m "$2")}
VOCAB=${VOCAB:+$(realpath -m "$VOCAB")}
cd "$(dirname "$script")/../.."
PATH=$PWD/.venv/bin:$PATH
command -v bertbench >/dev/null || { echo "$(basename "$script"): bertbench is not installed: run make setup in $PWD" >&2 && exit 127; }
: "${WIKI_LANGUAGE:=en}" "${DATE:=latest}" "${BOOKS:=pg19}" "${LOWER_CASE:=1}" "${DUPE_FACTOR:=5}" "${SEED:=12345}"
: "${WORKERS:=$(nproc)}"
[[ -n $input ]] || : "${SQUAD:=1}"

options=(--output "$output" --seq-lens 128 512 --dupe-factor "$DUPE_FACTOR" --seed "$SEED"
    --workers "$WORKERS")
[[ $LOWER_CASE == 1 ]] || options+=(--no-lower-case)
[[ -z $VOCAB ]] || options+=(--vocab "$VOCAB")
[[ -z ${SHARDS:-} ]] || options+=(--shards "$SHARDS")
if [[ -z $input ]]; then
    books=()
    [[ $BOOKS == none ]] || read -ra books <<<"$BOOKS"
    : "${DATASET:=wikipedia_$WIKI_LANGUAGE$(printf '%s' "${books[@]/#/_}")}"
    input=$output/download/$DATASET
    bertbench data download wikipedia "${books[@]}" --out "$input" --language "$WIKI_LANGUAGE" --date "$DATE" \
        ${BOOKS_LIMIT:+--books-limit "$BOOKS_LIMIT"}
fi
[[ -z ${DATASET:-} ]] || options+=(--dataset "$DATASET")
options+=(--input "$input")
[[ ${SQUAD:-0} != 1 ]] || bertbench data download squad --out "$output/download"
exec bertbench data pretrain "${options[@]}"
