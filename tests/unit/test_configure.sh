#!/bin/sh
# Runs configure against a double of an installed Slurm, in TAP: headers of another release are refused.
set -eu
source=$(cd "${srcdir:-.}" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
# What configure reads, without the traces of a build in the source folder.
mkdir -p slurm/include/slurm slurm/bin build source/lib
cp -r "$source/configure" "$source/build-aux" "$source/config.h.in" "$source/Makefile.in" source/
cp "$source/lib/eth_hpp.h" "$source/lib/eth-hpp.pc.in" source/lib/
chmod -R u+w source
echo '#define SLURM_VERSION_NUMBER 0x180b05' >slurm/include/slurm/slurm.h
echo 'int spank_prepend_task_argv(void);' >slurm/include/slurm/spank.h
cat >slurm/bin/slurmd <<'END'
#!/bin/sh
echo slurm-wlm 23.02.7
END
chmod +x slurm/bin/slurmd

configure() {
	(cd build && ../source/configure --disable-dependency-tracking --with-slurm="$folder/slurm" --with-pmix=no --with-ucx=no --with-cuda=no \
		--with-onednn=no --with-cmocka=no --cache-file="$folder/cache" >log 2>&1)
}

echo 1..2
if configure || ! grep -q 'headers are those of Slurm 24.11, the installed Slurm is 23.02' build/log; then
	sed 's/^/# /' build/log
	echo "not ok 1 - headers of another Slurm than the installed one are refused"
	exit 1
fi
echo "ok 1 - headers of another Slurm than the installed one are refused"
sed -i s/23.02.7/24.11.9/ slurm/bin/slurmd
if ! configure || ! grep -q 'slurm  *yes, for Slurm 24.11$' build/log; then
	sed 's/^/# /' build/log
	echo "not ok 2 - another maintenance release of the same Slurm is accepted"
	exit 1
fi
echo "ok 2 - another maintenance release of the same Slurm is accepted"
