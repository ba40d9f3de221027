#!/bin/sh
# Run network.pte on the inputs and compare with what it gave in Python: ./check.sh path/to/dimorder-run
set -eu
runner=$1
shift
cd "$(dirname "$0")"
case $runner in /*) ;; *) runner=$OLDPWD/$runner ;; esac
exec "$runner" network.pte @ARGUMENTS@ "$@"
