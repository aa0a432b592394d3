  const int LANE = int(thread_index_in_simdgroup), WARP = int(simdgroup_index_in_threadgroup);
  const int THREAD = int(thread_index_in_threadgroup);
  const int GROUP_X = int(threadgroup_position_in_grid.x), GROUP_Y = int(threadgroup_position_in_grid.y);
  (void)LANE; (void)WARP; (void)THREAD; (void)GROUP_X; (void)GROUP_Y;
