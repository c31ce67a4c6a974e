//! Tests for variant tables: lookups, evictions, and requests to select a variant.

use super::*;

fn names(list: &[&'static str]) -> Vec<HeaderName> {
    list.iter()
        .map(|name| HeaderName::from_static(name))
        .collect()
}

fn request(lines: &[(&'static str, &str)]) -> HeaderMap {
    let mut fields = HeaderMap::new();
    for (name, value) in lines {
        fields.append(*name, HeaderValue::from_str(value).unwrap());
    }
    fields
}

fn row(values: u64, place: VariantPlace, etag: &str) -> Variant {
    Variant {
        values,
        place,
        version: 1,
        alias: false,
        client: 0,
        etag: (!etag.is_empty()).then(|| etag.as_bytes().into()),
    }
}

fn table() -> VariantTable {
    let mut table = VariantTable::new(7, &names(&["cookie", "accept-encoding"]));
    table.set(row(1, VariantPlace::Here, "\"a\""));
    table.set(row(2, VariantPlace::Derived(2), "W/\"b\""));
    table.set(Variant {
        alias: true,
        ..row(3, VariantPlace::Derived(2), "W/\"b\"")
    });
    table.set(row(4, VariantPlace::Derived(4), ""));
    table
}

#[test]
fn a_table_survives_storage() {
    for table in [VariantTable::new(0, &names(&["a"])), table()] {
        assert_eq!(VariantTable::from_bytes(&table.to_bytes()), Some(table));
    }
}

#[test]
fn the_layout_is_the_tables() {
    let mut table = VariantTable::new(0x0102, &names(&["te"]));
    table.set(Variant {
        alias: true,
        version: 3,
        ..row(5, VariantPlace::Derived(6), "\"x\"")
    });
    let mut expected = vec![2, 1, 0, 0, 0, 0, 0, 0, 1, 2, b't', b'e', 1];
    expected.extend([5, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend([3, 6, 0, 0, 0, 0, 0, 0, 0, 3, b'"', b'x', b'"']);
    assert_eq!(table.to_bytes(), expected);
}

#[test]
fn bytes_that_are_no_table_are_refused() {
    let good = table().to_bytes();
    for length in 0..good.len() {
        assert_eq!(VariantTable::from_bytes(&good[..length]), None);
    }
    let long = [&good[..], b"x"].concat();
    assert_eq!(VariantTable::from_bytes(&long), None);
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] = 0xff;
        let read = VariantTable::from_bytes(&bad);
        assert!(read.is_none_or(|table| table.to_bytes() == bad), "{at}");
    }
}

#[test]
fn values_are_compared_in_one_spelling_under_all_fields_of_the_table() {
    let table = table();
    let of = |lines| table.values(&request(lines)).unwrap();
    let plain = of(&[("accept-encoding", "gzip, br"), ("cookie", "a=1")]);
    assert_eq!(
        plain,
        of(&[("cookie", "a=1"), ("accept-encoding", "br;q=0.5,gzip")])
    );
    assert_ne!(plain, of(&[("accept-encoding", "gzip, br")]));
    assert_ne!(
        plain,
        of(&[("accept-encoding", "gzip, br"), ("cookie", "A=1")])
    );
    let other = VariantTable::new(8, table.names());
    assert_ne!(
        other.values(&HeaderMap::new()),
        table.values(&HeaderMap::new())
    );
}

#[test]
fn the_order_of_names_in_a_vary_does_not_count() {
    let one = VariantTable::new(7, &names(&["a", "b"]));
    let other = VariantTable::new(7, &names(&["b", "a", "b"]));
    assert_eq!(one, other);
    assert!(one.covers(&names(&["b"])) && one.covers(&[]));
    assert!(!one.covers(&names(&["b", "c"])));
    assert_eq!(one.widened(&names(&["c", "a"])), names(&["a", "b", "c"]));
    let many = names(&["c", "d", "e", "f", "g", "h", "i"]);
    assert_eq!(one.widened(&many), many);
}

#[test]
fn beyond_sixteen_rows_the_oldest_goes_but_for_the_one_under_the_key() {
    let mut table = VariantTable::new(7, &names(&["a"]));
    table.set(row(0, VariantPlace::Here, ""));
    for hash in 1..=16 {
        table.set(row(hash, VariantPlace::Derived(hash), ""));
    }
    assert_eq!(table.rows().len(), VARIANTS_MAX);
    assert!(table.find(0).is_some() && table.find(1).is_none());
    // A row that is stored again becomes the newest.
    table.set(row(2, VariantPlace::Derived(2), ""));
    table.set(row(17, VariantPlace::Derived(17), ""));
    assert!(table.find(2).is_some() && table.find(3).is_none());
    assert_eq!(VariantTable::from_bytes(&table.to_bytes()), Some(table));
}

#[test]
fn a_new_version_has_no_aliases() {
    let mut table = table();
    assert!(table.find(3).is_some());
    table.set(Variant {
        version: 2,
        ..row(2, VariantPlace::Derived(2), "\"c\"")
    });
    assert!(table.find(3).is_none() && table.find(2).is_some() && table.find(4).is_some());
    table.forget(VariantPlace::Derived(4));
    assert!(table.find(4).is_none() && table.find(1).is_some());
}

#[test]
fn a_request_that_no_row_answers_names_each_tag_once() {
    let mut asked = request(&[("if-modified-since", "x"), ("range", "bytes=0-1")]);
    assert!(table().set_choices(&mut asked));
    assert_eq!(asked, request(&[("if-none-match", "\"a\", W/\"b\"")]));
    let mut none = VariantTable::new(7, &names(&["a"]));
    none.set(row(1, VariantPlace::Here, ""));
    none.set(row(2, VariantPlace::Derived(2), "no tag"));
    let mut asked = request(&[("if-modified-since", "x")]);
    assert!(!none.set_choices(&mut asked));
    assert!(asked.contains_key("if-modified-since"));
}

#[test]
fn a_304_means_the_row_whose_tag_it_names() {
    let table = table();
    let chosen = |tag| table.chosen(Some(&HeaderValue::from_static(tag)));
    assert_eq!(chosen("\"a\"").unwrap().place, VariantPlace::Here);
    assert_eq!(chosen("\"b\"").unwrap().place, VariantPlace::Derived(2));
    assert_eq!(chosen("\"c\""), None);
    assert_eq!(table.chosen(None), None);
    let mut single = VariantTable::new(7, &names(&["a"]));
    single.set(row(1, VariantPlace::Derived(1), "\"a\""));
    single.set(row(2, VariantPlace::Here, ""));
    assert_eq!(single.chosen(None).unwrap().values, 1);
}

#[test]
fn derived_names_are_of_one_table_and_one_row() {
    let table = table();
    let name = table.derived_name(b"key", 0x0203);
    assert_eq!(name, b"key\0v\x07\0\0\0\0\0\0\0\x03\x02\0\0\0\0\0\0");
    let other = VariantTable::new(8, table.names());
    assert_ne!(other.derived_name(b"key", 0x0203), name);
}

#[test]
fn rows_of_one_client_do_not_evict_those_of_others() {
    let mut table = VariantTable::new(7, &names(&["accept-language"]));
    let of = |client: u8, values: u64| Variant {
        client,
        ..row(values, VariantPlace::Derived(values), "")
    };
    table.set(of(9, 0));
    for values in 1..=3 {
        table.set(of(1, values));
    }
    for made_up in 100..200 {
        table.set(of(2, made_up));
    }
    assert_eq!(table.rows().len(), VARIANTS_MAX);
    for values in 0..=3 {
        assert!(
            table.find(values).is_some(),
            "row {values} of another client"
        );
    }
    assert!(table.find(199).is_some(), "the newest of its own");
    // A full table evicts rows of the client with the most rows, so a later client gets rows too.
    for values in 4..=10 {
        table.set(of(1, values));
    }
    assert!((0..=8).all(|values| values == 1 || table.find(values).is_some() || values < 4));
    assert!(table.find(0).is_some());
    let of_greedy = table.rows().iter().filter(|row| row.client == 2).count();
    assert!(of_greedy <= 8, "{of_greedy}");
}

#[test]
fn tags_of_clients_depend_on_the_nonce() {
    let tags = |nonce| (0..64_u8).map(move |client| client_tag(nonce, &[client]));
    assert!(tags(1).all(|tag| tag < 64));
    assert!(tags(1).ne(tags(2)));
}
