"""Show dimorder on a face detector. Needs the extra `demo`, and the weights of facenet-pytorch."""
