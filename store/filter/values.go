package filter

import "google.golang.org/protobuf/encoding/protowire"

// fewNames is how many properties an expression may name for their values to be looked
// up one name after the other, and to be kept on the stack.
const fewNames = 8

// The names under which an expression finds what the system knows of a message. No
// user property has such a name.
const (
	// nameTags is the tag.
	nameTags = "TAGS"
	// nameKeys is the message keys, with a space between each two.
	nameKeys = "KEYS"
	// nameID is the message id.
	nameID = "UNIQ_KEY"
	// nameGroup is the message group.
	nameGroup = "__SHARDINGKEY"
)

// Fields of the stored properties: those of the protocol's Message.user_properties,
// a map, and of the inside of Message.system_properties.
const (
	fieldProperty = 2
	fieldKey      = 1
	fieldValue    = 2

	fieldTag   = 1
	fieldKeys  = 2
	fieldID    = 3
	fieldGroup = 17
)

// A value is that of a property. It aliases the stored message.
type value struct {
	there bool
	text  []byte
}

// systemNames are the places of the names above, 1 higher; 0: not named.
type systemNames struct {
	any                   bool
	tags, keys, id, group int
	last                  protowire.Number // the last field that is of use
}

func (s *systemNames) find(places map[string]int) {
	for _, known := range []struct {
		name  string
		place *int
		field protowire.Number
	}{{nameTags, &s.tags, fieldTag}, {nameKeys, &s.keys, fieldKeys}, {nameID, &s.id, fieldID}, {nameGroup, &s.group, fieldGroup}} {
		if at, ok := places[known.name]; ok {
			*known.place, s.any, s.last = at+1, true, known.field
		}
	}
}

// read finds the values of the names in a stored message. It reports false for what is
// no stored message.
func (f *Filter) read(properties, system []byte, values []value) bool {
	if len(f.names) == 0 {
		return true
	}
	for len(properties) > 0 {
		field, kind, n := protowire.ConsumeTag(properties)
		if n < 0 || field != fieldProperty || kind != protowire.BytesType {
			return false
		}
		entry, size := protowire.ConsumeBytes(properties[n:])
		if size < 0 {
			return false
		}
		properties = properties[n+size:]
		if !f.readEntry(entry, values) {
			return false
		}
	}
	return !f.system.any || f.readSystem(system, values)
}

// readEntry reads one user property.
func (f *Filter) readEntry(entry []byte, values []value) bool {
	var key, text []byte
	for len(entry) > 0 {
		field, kind, n := protowire.ConsumeTag(entry)
		if n < 0 || kind != protowire.BytesType {
			return false
		}
		v, size := protowire.ConsumeBytes(entry[n:])
		if size < 0 {
			return false
		}
		entry = entry[n+size:]
		switch field {
		case fieldKey:
			key = v
		case fieldValue:
			text = v
		}
	}
	if at, named := f.placeOf(key); named {
		values[at] = value{there: true, text: text}
	}
	return true
}

func (f *Filter) placeOf(name []byte) (int, bool) {
	if f.places != nil {
		at, named := f.places[string(name)]
		return at, named
	}
	for i, known := range f.names {
		if known == string(name) {
			return i, true
		}
	}
	return 0, false
}

// readSystem reads the system properties, which are in the order of their fields. What
// a user property of such a name says does not count.
func (f *Filter) readSystem(system []byte, values []value) bool {
	s := &f.system
	for _, place := range [...]int{s.tags, s.keys, s.id, s.group} {
		if place > 0 {
			values[place-1] = value{}
		}
	}
	for len(system) > 0 {
		field, kind, n := protowire.ConsumeTag(system)
		if n < 0 {
			return false
		}
		if field > s.last {
			return true
		}
		size := protowire.ConsumeFieldValue(field, kind, system[n:])
		if size < 0 {
			return false
		}
		if kind == protowire.BytesType {
			text, _ := protowire.ConsumeBytes(system[n : n+size])
			s.set(field, text, values)
		}
		system = system[n+size:]
	}
	return true
}

func (s *systemNames) set(field protowire.Number, text []byte, values []value) {
	place := 0
	switch field {
	case fieldTag:
		place = s.tags
	case fieldKeys:
		place = s.keys
	case fieldID:
		place = s.id
	case fieldGroup:
		place = s.group
	}
	if place == 0 || len(text) == 0 { // an empty one is none
		return
	}
	v := &values[place-1]
	if field == fieldKeys && v.there {
		// A copy: what is stored must not be changed.
		v.text = append(append(append(make([]byte, 0, len(v.text)+1+len(text)), v.text...), ' '), text...)
		return
	}
	v.there, v.text = true, text
}
