  const int LANE = int(threadIdx.x) % 32, WARP = int(threadIdx.x) / 32, THREAD = int(threadIdx.x);
  const int GROUP_X = int(blockIdx.x), GROUP_Y = int(blockIdx.y);
  (void)LANE; (void)WARP; (void)THREAD; (void)GROUP_X; (void)GROUP_Y;
