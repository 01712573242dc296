EXTRA_DIST += \
	contrib/eth-hpp.spec \
	contrib/examples/given-plan.sbatch \
	contrib/examples/gpt2.sbatch \
	contrib/examples/partitions.sbatch \
	contrib/examples/requeue.sbatch \
	contrib/install-packages \
	contrib/mini-cluster \
	contrib/mini-cluster.d/config.sh \
	contrib/mini-cluster.d/daemons.sh \
	contrib/mini-cluster.d/devices \
	contrib/mini-cluster.d/member-init \
	contrib/mini-cluster.d/members.sh \
	contrib/mini-cluster.d/node-file.sh \
	contrib/mini-cluster.d/slow-link.nodes \
	contrib/mini-cluster.d/unlike.nodes \
	contrib/packages \
	contrib/quickstart \
	contrib/quickstart.nodes

# For bash; looked for under the program's name.
completiondir = $(datadir)/bash-completion/completions
dist_completion_DATA = contrib/completion/eth-hpp
