# The Debian source package is the distribution itself.
EXTRA_DIST += \
	debian/changelog \
	debian/control \
	debian/copyright \
	debian/eth-hpp-cuda.install \
	debian/eth-hpp-cuda.lintian-overrides \
	debian/eth-hpp-slurm-plugin.install \
	debian/eth-hpp-slurm-plugin.postinst \
	debian/eth-hpp-slurm-plugin.postrm \
	debian/eth-hpp-slurm-plugin.prerm \
	debian/eth-hpp.docs \
	debian/eth-hpp.examples \
	debian/eth-hpp.install \
	debian/libethhpp-dev.install \
	debian/libethhpp1.install \
	debian/rules \
	debian/source/format
