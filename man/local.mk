# what this folder builds
