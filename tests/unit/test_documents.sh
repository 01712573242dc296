#!/bin/sh
# Holds the examples that the documents show against the files that are tested, in TAP.
set -eu
top=${srcdir:-.}
number=0 failed=0

# The blocks of a document that begin as a batch script does.
shown() { # DOCUMENT
	awk '/^```/ { inside = !inside; first = inside; next } inside && first { first = 0; script = /^#!/ } inside && script' "$1"
}

check() { # NAME COMMAND...
	number=$((number + 1))
	name=$1
	shift
	if "$@"; then
		echo "ok $number - $name"
	else
		echo "not ok $number - $name"
		failed=1
	fi
}

shows_examples() { [ "$(shown "$top/docs/users.md")" = "$(cat "$top"/contrib/examples/gpt2.sbatch "$top"/contrib/examples/partitions.sbatch \
	"$top"/contrib/examples/requeue.sbatch "$top"/contrib/examples/given-plan.sbatch)" ]; }

# Without the comment, which the text around it makes.
shows_first_example() { [ "$(shown "$top/README.md")" = "$(sed '2d' "$top/contrib/examples/gpt2.sbatch")" ]; }

check "docs/users.md shows the examples" shows_examples
check "README.md shows the first one" shows_first_example
echo "1..$number"
exit $failed
