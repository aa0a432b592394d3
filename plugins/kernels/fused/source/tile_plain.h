#define TILE_ROWS const auto rows = plain_row(x, size_t(mine * G + g) * K, mine < R);
