// Portable. A lane's row of a group: that of its pair m.
template <int DIVIDE, typename P>
FN PlainRow<P> member_row(P x, Members group, int m, int k) {
  return plain_row(x, size_t(pair_at(group, m) / DIVIDE) * k, m < group.count);
}
