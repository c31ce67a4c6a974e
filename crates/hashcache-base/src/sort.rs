//! Sorting for short slices, or for slices that are seldom sorted.
//!
//! The sorting functions in the standard library have 5 kB of code for each type and order. Here
//! only the indices of the items are sorted, so the binary has this code once.
//!
//! Cost: a call by pointer for each comparison, and a word and a key of memory for each item.

use std::cmp::Ordering;

/// Sorts by a key. Items with equal keys keep their order.
pub fn sort_by_key<T, K: Ord>(items: &mut [T], key: impl Fn(&T) -> K) {
    // The key is computed once for each item: other threads may change a key meanwhile, and the
    // standard library may panic at an order that contradicts itself.
    let keys: Vec<K> = items.iter().map(key).collect();
    let order = order(keys.len(), &|one, other| keys[one].cmp(&keys[other]));
    arrange(items, order);
}

/// The indices of the items in sorted order.
fn order(count: usize, compare: &dyn Fn(usize, usize) -> Ordering) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by(|&one, &other| compare(one, other));
    order
}

/// Moves each item to the new place; `order[n]` is the old place of the item that belongs at n.
fn arrange<T>(items: &mut [T], mut order: Vec<usize>) {
    for place in 0..items.len() {
        let mut from = order[place];
        // An earlier swap moved that item: follow it to the present place.
        while from < place {
            from = order[from];
        }
        order[place] = from;
        items.swap(place, from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_sorted_and_equal_ones_keep_their_order() {
        let seed = fastrand::u64(..);
        let mut random = fastrand::Rng::with_seed(seed);
        for count in 0..200 {
            let item = |place| (random.u8(..20), place);
            let mut items: Vec<(u8, usize)> = (0..count).map(item).collect();
            let mut expected = items.clone();
            expected.sort_by_key(|(key, _)| *key);
            sort_by_key(&mut items, |(key, _)| *key);
            assert_eq!(items, expected, "seed {seed}");
        }
    }
}
